"""A real PRM from SmolLM2-135M, next to what its backbone knows untrained.

    python experiments/smollm2_prm/run.py --workdir DIR [--train likelihood]

Scores ProcessBench with rules that need no model, with the log-probabilities
of the untrained backbone, and with every recipe whose training run is in the
workdir; --train runs those that are named first. Thresholds of all rows come
from the same held-out training problems. Writes results.json and the table of
README.md beside this file. What was computed before is not computed again.
"""

import argparse
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import likelihood
import numpy as np
import recipes
from judging import (
  DEV,
  LENGTH_RULE,
  REFERENCE,
  Part,
  add_signals,
  compare,
  make_part,
)

from prm_jax.data import builder
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.jobs.settings.training import Settings, settings_of
from prm_jax.report import readme_table
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh

HERE = pathlib.Path(__file__).parent
# Written as somebody solved the problem; the other dev chains have errors
# planted in them.
NATURAL = ('prm800k_flat', 'prmbench_original', 'verify_then_generate')
AND_DIGITS = '_and_digits'
ROWS = {
  'digit_count': 'trivial: minus the digits of the step',
  LENGTH_RULE: 'trivial: best rule on chain length',
  REFERENCE: 'zero-shot: sum over the digit tokens',
  'mean_likelihood': 'zero-shot: mean over all tokens',
  'minimum_likelihood': 'zero-shot: minimum over all tokens',
}
for _name, (_, _, _text) in recipes.RECIPES.items():
  ROWS[_name] = f'trained: {_text}'
  ROWS[_name + AND_DIGITS] = f'{_name} + sum over the digit tokens'
RESAMPLES = 2000


def evenly(chains: Sequence[Chain], count: int) -> list[Chain]:
  """`count` of them, evenly spaced: ProcessBench has the wrong ones first."""
  count = min(count or len(chains), len(chains))
  return [chains[i * len(chains) // count] for i in range(count)]


def base_config(data_folder: pathlib.Path) -> dict[str, Any]:
  """The `smollm2` variant, from which backbone, format and data are taken."""
  path = recipes.ROOT / recipes.CONFIG
  spec = importlib.util.spec_from_file_location('prm_math', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = module.get_config('smollm2').to_dict()
  config['data']['dir'] = str(data_folder)
  config['model']['dtype'] = 'float32'  # of the rows that need no training
  config['data']['worked_answers'] = ''  # they only train
  return config


def sets_of(dataset: Dataset) -> dict[str, list[Chain]]:
  """All chains there are, in the order in which they are scored."""
  return {
    'gsm8k': dataset.evaluations['gsm8k'],
    DEV: [c for c in dataset.dev if c.meta['dataset'] in NATURAL],
    'math': dataset.evaluations['math'],
  }


def untrained_scores(
  chains: Sequence[Chain],
  cache: pathlib.Path,
  settings: Settings,
  load_backbone: Callable[[], Any],
  log: Callable[[str], None],
) -> tuple[dict[str, list[np.ndarray]], int]:
  """Step scores of the rows that need no training, and the steps not read."""
  model, fmt = settings.described.model, settings.described.format
  encodings = [likelihood.encode(chain, fmt) for chain in chains]
  known = likelihood.read_or_compute(
    [encoding for encoding in encodings if encoding is not None],
    cache,
    load_backbone,
    model,
    log,
  )
  of_chains = [
    likelihood.step_scores(
      encoding, known, fmt.digit_tokens, len(fmt.separator)
    )
    for encoding in encodings
  ]
  scores = {
    REFERENCE: [found['digits'] for found in of_chains],
    'mean_likelihood': [found['mean'] for found in of_chains],
    'minimum_likelihood': [found['minimum'] for found in of_chains],
    'digit_count': [
      np.array([-sum(c in likelihood.DIGITS for c in s) for s in chain.steps])
      for chain in chains
    ],
  }
  read = sum(0 if e is None else len(e.step_ends) for e in encodings)
  return scores, sum(len(chain.steps) for chain in chains) - read


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """Markdown, in percent."""
  lines = [
    '| set | scorer | F1 | 95% interval | acc, error | acc, correct | F1 minus '
    'digit likelihood |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for name, rows in found.items():
    for row, values in rows.items():
      low, high = values['ci95']
      lead = values[f'minus_{REFERENCE}']
      difference, (least, most) = lead['difference'], lead['ci95']
      cells = (
        f'{100 * values["f1"]:.1f}',
        f'{100 * low:.1f} to {100 * high:.1f}',
        f'{100 * values["acc_error"]:.1f}',
        f'{100 * values["acc_correct"]:.1f}',
        ''
        if row == REFERENCE
        else f'{100 * difference:+.1f} ({100 * least:+.1f} to '
        f'{100 * most:+.1f})',
      )
      lines.append(f'| {name} | {ROWS[row]} | {" | ".join(cells)} |')
  return '\n'.join(lines)


def render(document: Mapping[str, Any]) -> str:
  """All that the README says of it, Markdown."""
  return f'{table(document["results"]["localisation"])}\n\n{notes(document)}'


def notes(document: Mapping[str, Any]) -> str:
  """What the table does not say: which chains, and best of N."""
  about, results = document['manifest'], document['results']
  lines = [
    f'{name}: {count["chains"]} of {count["of"]} chains, {count["error"]} with '
    f'an error; {count["unread_steps"]} steps beyond the window.'
    for name, count in about['sets'].items()
  ]
  for name, rows in results['localisation'].items():
    best = ', '.join(
      f'{100 * values["upper_bound"]["f1"]:.1f} ({row})'
      for row, values in rows.items()
      if 'upper_bound' in values
    )
    lines.append(f'F1 at the best threshold of {name} itself: {best}.')
  for row, curve in results['best_of_n'].items():
    picked = ', '.join(
      f'{100 * values["mean"][-1]:.1f} ({name})'
      for name, values in curve.items()
      if name != 'n'
    )
    lines.append(f'Best of {curve["n"][-1]} over the pool, {row}: {picked}.')
  return '\n'.join(f'- {line}' for line in lines)


def parse() -> tuple[argparse.Namespace, list[str]]:
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    epilog='Arguments --config.NAME=VALUE go on to the training runs.',
  )
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument(
    '--train', nargs='*', default=[], choices=[*recipes.RECIPES]
  )
  parser.add_argument(
    '--report', choices=[*recipes.RECIPES], help='write its report.html, too'
  )
  for name, count in (('gsm8k', 0), ('math', 250), (DEV, 0)):
    parser.add_argument(
      f'--{name}', type=int, default=count, help='chains, evenly spaced; 0: all'
    )
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args, extra = parser.parse_known_args()
  if wrong := [x for x in extra if not x.startswith('--config.')]:
    parser.error(f'unknown argument {wrong[0]}')
  return args, extra


def log(text: str) -> None:
  print(text, flush=True)


def main() -> None:
  args, extra = parse()
  data_folder = (args.workdir / 'data').absolute()
  for name in args.train:
    recipes.train(name, args.workdir, data_folder, extra)

  config = base_config(data_folder)
  settings = settings_of(config)
  fmt, dtype = settings.described.format, settings.described.model.dtype
  args.workdir.mkdir(parents=True, exist_ok=True)
  dataset = load_dataset(config['data'], config['seed'], args.workdir, log)
  mesh = make_mesh(config['mesh'])
  every = sets_of(dataset)
  parts: dict[str, Part] = {}
  scores: dict[str, dict[str, list[np.ndarray]]] = {}
  counts: dict[str, dict[str, int]] = {}
  for name, chains in every.items():
    part = make_part(evenly(chains, getattr(args, name)))
    untrained, unread = untrained_scores(
      part.chains,
      args.workdir / f'logprobs_{name}_{dtype}_{fmt.fingerprint()}.npz',
      settings,
      lambda: settings.base.load(mesh),
      log,
    )
    parts[name] = part
    for row, values in untrained.items():
      scores.setdefault(row, {})[name] = values
    counts[name] = {
      'chains': len(part.chains),
      'of': len(chains),
      'error': int((part.first >= 0).sum()),
      'problems': len({chain.problem for chain in part.chains}),
      'unread_steps': unread,
    }

  runs = {
    name: recipes.read(name, args.workdir)
    for name in recipes.trained(args.workdir)
  }
  for recipe in runs:
    trained = recipes.TrainedScores(recipe, args.workdir)
    scores[recipe] = {
      name: trained.score(name, part.chains, builder.fingerprint(part.chains))
      for name, part in parts.items()
    }
    scores[recipe + AND_DIGITS] = add_signals(scores[recipe], scores[REFERENCE])

  found = compare(scores, parts, config['seed'], RESAMPLES)
  found = {
    name: {row: rows[row] for row in ROWS if row in rows}
    for name, rows in found.items()
  }
  on_dev = found.pop(DEV)
  flags = ' '.join(f'--{name}={getattr(args, name)}' for name in every)
  document = {
    'manifest': manifest.describe(config)
    | {
      'command': f'python experiments/smollm2_prm/run.py --workdir DIR {flags}',
      'data_fingerprint': dataset.fingerprint,
      'encoding_fingerprint': fmt.fingerprint(),
      'dtype_untrained': dtype,
      'window': fmt.max_length,
      'threshold_source': f'best F1 on {counts[DEV]["chains"]} natural chains '
      f'of {counts[DEV]["problems"]} held-out training problems',
      'sets': counts,
      'runs': {name: run['manifest'] for name, run in runs.items()},
    },
    'results': {
      'localisation': found,
      'dev': on_dev,
      'best_of_n': {
        name: run['results']['best_of_n']
        for name, run in runs.items()
        if 'best_of_n' in run['results']
      },
    },
  }
  manifest.write_json(args.output / 'results.json', document)
  if args.report:
    recipes.write_report_without_chains(args.report, args.workdir, args.output)
  text = render(document)
  readme = args.output / 'README.md'
  if readme.exists():
    readme_table.fill(readme, text)
  print(text)


if __name__ == '__main__':
  try:
    main()
  except UserError as error:
    sys.exit(f'error: {error}')
