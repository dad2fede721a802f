"""A PRM from SmolLM2-135M beside what its backbone knows without training.

    python -m experiments.smollm2_prm.run --workdir DIR [--train likelihood]

A backbone reads every chain once: SmolLM2-135M-Instruct as it is published, and
with --also sft the same after supervised fine-tuning on GSM8K's worked answers,
or the published one with steps split into sentences. ProcessBench is scored by
features of the text, by the log-probabilities of each reading, by heads fitted
on what it makes of the steps, and by every recipe whose training runs are in
the workdir; --train runs some recipes first.
All rows have their thresholds by one rule. Writes results.json and the table of
README.md beside this file. The same command resumes what is there.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command_line
from experiments.runner import Runner
from experiments.smollm2_prm import recipes
from experiments.smollm2_prm.known_rows import keep_rows
from experiments.smollm2_prm.leads import (
  RULE,
  UNTRAINED,
  add_leads_on_rule,
  add_leads_on_text,
  compare,
)
from experiments.smollm2_prm.rows import (
  HELD_OUT,
  REFERENCE,
  Reading,
  dev_of,
  open_reading,
  reading_scores,
  sums_together,
  text_picks,
  text_scores,
  trained_scores,
)
from experiments.tables import (
  between,
  mean,
  percent,
  points,
  points_between,
  table,
)
from prm_jax.evals import scorers
from prm_jax.evals.scorers import DEV, Part
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.runtime.workdir import is_done

ROWS = {
  'noise': 'null: a random number for each step',
  'length': 'trivial: minus the characters of the step',
  'digit_count': 'trivial: minus the digits of the step',
  REFERENCE: 'zero-shot: sum over the digit tokens',
  'words': 'zero-shot: sum over the other tokens',
  'untrained': 'zero-shot: ten times the first sum and the second',
  'checked': 'the same, steps with a false equation below all others',
  'likelihood': 'head on both sums',
  'state': 'head on the hidden state at the end of the step',
  'both': 'head on state and sums',
  'mlp': 'head with a hidden layer on state and sums',
}
ROWS |= {
  f'{name}_{reading}': text + ROWS[name]
  for reading, text in recipes.READINGS.items()
  if reading
  for name in [*ROWS][[*ROWS].index(REFERENCE) :]
}
ROWS |= {
  f'together_{name}': f'{recipes.READINGS[name]}{ROWS[RULE]}, with both sums '
  'of the published model added'
  for name in recipes.SFT_STEPS
}
ROWS |= {
  f'trained_{name}': f'trained: {recipe.text}'
  for name, recipe in recipes.RECIPES.items()
}


def results_table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """Shows every row on every set, in percent."""
  rows = []
  for name, by_row in found.items():
    for row, values in by_row.items():
      auc, seeds = values['auc'], values['seeds']
      rows.append(
        [
          name,
          ROWS[row],
          _with_interval(values, 'f1'),
          ', '.join(map(percent, seeds)) if len(seeds) > 1 else '',
          percent(values['acc_error']),
          percent(values['acc_correct']),
          '' if row == REFERENCE else _lead(values['lead']),
          _with_interval(auc, 'value'),
          '' if row == REFERENCE else _lead(auc['lead']),
        ]
      )
  heads = (
    'set | scorer | F1 | each seed | acc, error | acc, correct | '
    'F1 minus digit likelihood | AUC | AUC minus digit likelihood'
  )
  return table(heads, rows)


def _with_interval(values: Mapping[str, Any], name: str) -> str:
  return f'{percent(values[name])} ({between(values["ci95"])})'


def _lead(values: Mapping[str, Any]) -> str:
  return f'{points(values["difference"])} ({points_between(values["ci95"])})'


def render(document: Mapping[str, Any]) -> str:
  """Makes the table, and the notes below it."""
  text = results_table(document['results']['localisation'])
  return f'{text}\n\n{notes(document)}'


def notes(document: Mapping[str, Any]) -> str:
  """Says what the table does not: the chains, other thresholds, best of N."""
  about, results = document['manifest'], document['results']
  lines = [
    f'{name} has {count["chains"]} of {count["of"]} chains, {count["error"]} '
    f'with an error; {count["unread_steps"]} steps are beyond the window.'
    for name, count in about['sets'].items()
  ]
  for key, text in (
    ('dev_threshold', 'with the best threshold of the dev chains'),
    ('upper_bound', 'at its own best threshold, which needs its labels'),
  ):
    for name, rows in results['localisation'].items():
      shown = ', '.join(
        f'{percent(mean([run[key]["f1"] for run in values["runs"]]))} ({row})'
        for row, values in rows.items()
      )
      lines.append(f'F1 on {name} {text}: {shown}.')
  for name, rows in results['localisation'].items():
    for row in UNTRAINED:
      shown = ', '.join(
        f'{_lead(leads["auc"])} on {other}'
        for other, leads in rows[row]['lead_on_text'].items()
      )
      lines.append(f'The lead of {row} by AUC on {name}: {shown}.')
  for row, methods in results['best_of_n'].items():
    picked = ', '.join(
      f'{percent(mean(values))} ({name})' for name, values in methods.items()
    )
    lines.append(f'Best of 6 over the pool, {row}: {picked}.')
  return '\n'.join(f'- {line}' for line in lines)


def picked(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
  """Returns the share of right picks from all samples: method -> each run's."""
  return {
    name: [curve[name]['mean'][-1] for curve in curves]
    for name in curves[0]
    if name != 'n'
  }


def about_set(
  reading: Reading, name: str, part: Part, read: Sequence[int]
) -> dict[str, int]:
  """Counts the chains of a set, their problems and the steps without scores."""
  return {
    'chains': len(part.chains),
    'of': len(reading.every(name)),
    'error': int((part.first >= 0).sum()),
    'problems': len({chain.problem for chain in part.chains}),
    'unread_steps': sum(len(c.steps) for c in part.chains) - sum(read),
  }


def parse() -> tuple[argparse.Namespace, list[str]]:
  """Parses the command line.

  Returns:
    The arguments, and those that go on to the jobs.
  """
  names = [*recipes.RECIPES]
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--seeds', '--jobs'
  )
  parser.epilog = 'Arguments --config.NAME=VALUE go on to the PRM jobs.'
  parser.add_argument(
    '--also',
    nargs='*',
    default=[],
    choices=[reading for reading in recipes.READINGS if reading],
    help='further ways to read the chains',
  )
  parser.add_argument(
    '--train', nargs='*', default=[], choices=names, help='recipes to train'
  )
  parser.add_argument(
    '--report', choices=names, help='recipe whose report.html is written, too'
  )
  args, extra = parser.parse_known_args()
  if wrong := [x for x in extra if not x.startswith('--config.')]:
    parser.error(f'unknown argument {wrong[0]}')
  if extra and args.output.resolve() == parser.get_default('output'):
    parser.error(
      f'{extra[0]} runs another experiment, whose results may not replace '
      'those of this one; name another folder with --output'
    )
  given = [x for x in sys.argv[1:] if x not in extra]
  free = ('also', 'report', 'seeds', 'train')
  args = command_line.parse(parser, free, given)
  if args.output.resolve() == parser.get_default('output'):
    _check_whole(args)
  return args, extra


def wanted_readings(args: argparse.Namespace) -> list[str]:
  """Returns the readings that a command names, or finds in the workdir."""
  return [
    reading
    for reading in recipes.READINGS
    if reading in ('', *args.also)
    or is_done(args.workdir / recipes.reading_folder(reading))
  ]


def wanted_runs(args: argparse.Namespace) -> dict[str, list[int]]:
  """Returns what a command trains, or finds in the workdir: recipe -> seeds."""
  done = recipes.trained(args.workdir)
  asked = dict.fromkeys(args.train, args.seeds)
  found = {
    name: sorted({*done.get(name, ()), *asked.get(name, ())})
    for name in recipes.RECIPES
  }
  return {name: seeds for name, seeds in found.items() if seeds}


def _check_whole(args: argparse.Namespace) -> None:
  """Checks that what a command writes may replace the results that are there.

  Raises:
    UserError: a seed of a row would be lost, or one of them chose settings.
  """
  elsewhere = 'name another folder with --output'
  runs = wanted_runs(args)
  for name, seeds in runs.items():
    if command_line.TUNING_SEED in seeds:
      folder = recipes.folder(name, command_line.TUNING_SEED)
      raise UserError(
        f'{args.workdir / folder}: its seed chose settings, and is no result; '
        f'{elsewhere}'
      )
  known = command_line.read_known(args)
  lost = [
    recipes.folder(name, int(seed))
    for name, seeds in (known['manifest']['runs'] if known else {}).items()
    for seed in seeds
    if name in runs and int(seed) not in runs[name]
  ]
  if lost:
    raise UserError(
      f'{args.output / "results.json"} has seeds that this command would lose, '
      f'of {", ".join(lost)}; name them with --train and --seeds, or '
      f'{elsewhere}'
    )


def run_jobs(
  args: argparse.Namespace, extra: Sequence[str]
) -> tuple[dict[str, pathlib.Path], dict[str, dict[int, pathlib.Path]]]:
  """Runs all jobs that are not done.

  Returns:
    The workdirs: reading -> folder; recipe -> seed -> folder.
  """
  data = (args.workdir / 'data').absolute()
  runner = Runner(args.workdir, args.jobs)
  # Several recipes, and readings, may start from one fine-tuned model.
  for name in recipes.SFT_STEPS:
    starts = {recipes.RECIPES[recipe].start for recipe in args.train}
    if name in {*starts, *args.also}:
      recipes.fine_tune(runner, name)
  wanted, runs = wanted_readings(args), wanted_runs(args)
  calls = [(recipes.read_chains, runner, name, data, extra) for name in wanted]
  calls += [
    (recipes.train, runner, name, data, extra, seed)
    for name, seeds in runs.items()
    for seed in seeds
  ]
  paths = iter(runner.all(lambda call, *given: call(*given), calls))
  read = {name: next(paths) for name in wanted}
  return read, {
    name: {seed: next(paths) for seed in seeds} for name, seeds in runs.items()
  }


def judge_rows(
  readings: Mapping[str, Reading],
  trained: Mapping[str, Mapping[int, pathlib.Path]],
  parts: Mapping[str, Part],
  read_steps: Mapping[str, Sequence[int]],
) -> dict[str, list[dict[str, scorers.Judged]]]:
  """Judges every row: row -> its runs.

  Args:
    parts: the chains of each set that the readings have.
    read_steps: set -> how many steps of each chain are read.
  """
  plain = readings['']
  share = plain.settings.evaluation.wrong_share
  scores = text_scores(parts, read_steps, command_line.SEEDS)
  for name, reading in readings.items():
    suffix = f'_{name}' if name else ''
    found = reading_scores(reading, parts)
    scores |= {f'{row}{suffix}': runs for row, runs in found.items()}
    if name in recipes.SFT_STEPS:
      scores[f'together_{name}'] = [sums_together([plain, reading], parts)]
  judged = {
    row: [scorers.judge(run, parts, share) for run in runs]
    for row, runs in scores.items()
  }
  for recipe, folders in trained.items():
    judged[f'trained_{recipe}'] = []
    for run in folders.values():
      dev, indices = dev_of(run)
      # A training run scores no chains that are held out.
      own = {k: part for k, part in parts.items() if k != HELD_OUT} | {DEV: dev}
      found = trained_scores(
        run, {k: plain.chosen[k] for k in own} | {DEV: indices}
      )
      judged[f'trained_{recipe}'].append(scorers.judge(found, own, share))
  return {row: judged[row] for row in ROWS if row in judged}


@exit_on_user_error()
def main() -> None:
  args, extra = parse()
  read, trained = run_jobs(args, extra)
  readings = {name: open_reading(path) for name, path in read.items()}
  plain = readings['']
  parts = {name: scorers.make_part(plain.chains(name)) for name in plain.chosen}
  read_steps = {
    name: [
      len(plain.features.of(chain.problem, chain.steps).states)
      for chain in part.chains
    ]
    for name, part in parts.items()
  }
  judged = judge_rows(readings, trained, parts, read_steps)
  seed = plain.settings.seed
  reported = {name: part for name, part in parts.items() if name != DEV}
  found = compare(judged, reported, REFERENCE, seed)
  add_leads_on_rule(found, judged, reported, seed)
  add_leads_on_text(found, judged, reported, seed)
  jobs = {
    recipe: {str(seed): recipes.read(run) for seed, run in folders.items()}
    for recipe, folders in trained.items()
  }
  jobs |= {path.name: {'0': recipes.read(path)} for path in read.values()}
  share = plain.settings.evaluation.wrong_share
  document = {
    'manifest': manifest.describe(seed)
    | {
      'command': args.command,
      'data_fingerprint': plain.dataset.fingerprint,
      'encoding_fingerprint': plain.features.fmt.fingerprint(),
      'window': plain.features.fmt.max_length,
      'threshold_source': f'flags {share:.0%} of the chains of each set',
      'sets': {
        name: about_set(plain, name, part, read_steps[name])
        for name, part in parts.items()
      },
      'runs': {
        name: {seed: run['manifest'] for seed, run in runs.items()}
        for name, runs in jobs.items()
      },
    },
    'results': {
      'localisation': found,
      'best_of_n': {
        name: picked([run['results']['best_of_n'] for run in runs.values()])
        for name, runs in jobs.items()
      }
      | {'without a model': text_picks(plain.pool())},
    },
  }
  if known := command_line.read_known(args):
    keep_rows(document, known, ROWS)
  if args.report:
    run = next(iter(trained.get(args.report, {}).values()), None)
    if run is None:
      raise UserError(f'--report {args.report}: no run of it is done')
    recipes.write_report_without_chains(run, args.output)
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
