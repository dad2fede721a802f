"""Does it pay that a verifier writes before it judges?

    pip install -e '.[experiments]'
    python -m experiments.thinking_verifiers.run --workdir DIR

A PRM with a head, an ORM, a critic (trained on critiques, and then improved by
RL) and a critic of outcomes judge the same chains. All have the same
architecture and learn from the same labelled chains of a domain; critics write
one to sixteen critiques. The chains are of the kind learned from, longer, or by
a solver with other wrong beliefs. Writes results.json, figure.svg and the table
of README.md beside this file.

The same command goes on where it was stopped. A seed of a domain takes one core
hours: --domains and --seeds run some of them, and keep what is known of others.
"""

import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import command_line, figures
from experiments.findings import over
from experiments.runner import Runner
from experiments.tables import mean, percent, table
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.workdir import read_results

SAMPLES = (1, 4, 16)  # critiques of a chain
LIKE, LONGER, OTHERS = 'as in training', 'longer', 'other wrong beliefs'
PRM, ORM = 'PRM', 'ORM'
SFT, RL = 'critic', 'critic after RL'
OUTCOME = 'outcome critic'
CRITICS = {SFT: 'thinkprm', RL: 'thinkprm', OUTCOME: 'genrm'}
# Arms that say which step is wrong, and not only which chain.
STEPWISE = (PRM, SFT, RL)
CANDIDATES = 16


class Domain(NamedTuple):
  """Says how long the chains of a domain are.

  Attributes:
    length: field of the domain's config that has the number of steps.
    longer: that number where chains are longer than in training.
    tokens: of a longer chain.
    asked: of a question about it with the critique.
  """

  length: str
  longer: int
  tokens: int
  asked: int


DOMAINS = {
  'arithmetic': Domain('operations', 8, 72, 192),
  'logic': Domain('steps', 8, 224, 448),
}


class Size(NamedTuple):
  """Says how long models learn, and on what they are judged.

  Attributes:
    steps: updates of a PRM, or an ORM.
    critic_steps: those of a critic, which learns more slowly: after half as
      many some seeds find few errors.
    updates: those of RL.
  """

  steps: int = 1000
  critic_steps: int = 2000
  updates: int = 60
  problems: int = 60
  chains: int = 8192


QUICK = Size(4, 4, 2, 4, 64)


class Seed(NamedTuple):
  """Runs the jobs of one domain and one seed."""

  runner: Runner
  name: str
  seed: int
  size: Size

  def run(self, config: str, job: str, *flags: str) -> pathlib.Path:
    """Runs a job unless it is done; returns its workdir."""
    folder = f'{self.name}_{self.seed}/{job}'
    return self.runner.main(
      config, folder, f'--config.seed={self.seed}', *flags
    )

  def domain_flags(self, section: str, where: str = LIKE) -> Iterator[str]:
    """Yields the flags of the chains of one kind."""
    domain, field = DOMAINS[self.name], f'--config.{section}.{self.name}'
    # Equal sizes are one draw: nobody is judged by what it was trained on.
    yield f'--config.{section}.train_problems={self.size.chains}'
    yield f'--config.{section}.dev_problems=64'
    yield f'--config.{section}.test_problems={self.size.problems}'
    beliefs = self.seed + 100 if where == OTHERS else self.seed
    yield f'{field}.solver_seed={beliefs}'
    if where == LONGER:
      yield f'{field}.{domain.length}={domain.longer}'

  def windows(self, tokens: int, batch: int, steps: int) -> tuple[str, ...]:
    """Returns the flags of a window for the longer chains, too."""
    return (
      f'--config.data.max_length={tokens}',
      f'--config.data.row_length={4 * tokens}',
      '--config.data.max_steps_per_row=128',
      f'--config.data.batch_size={batch}',
      f'--config.train.steps={steps}',
      f'--config.train.checkpoint_every={max(1, steps // 4)}',
    )

  def prm(self) -> pathlib.Path:
    """Trains a PRM, and an ORM below its workdir."""
    variant = '' if self.name == 'arithmetic' else f':{self.name}'
    return self.run(
      f'prm_math.py{variant}',
      'prm',
      *self.domain_flags('data'),
      *self.windows(DOMAINS[self.name].tokens, 8, self.size.steps),
      '--config.data.test_samples=16',
      '--config.evaluation.ns=(1, 16)',
    )

  def critic(self, arm: str) -> pathlib.Path:
    """Trains a critic; one after RL goes on from the one before."""
    style = CRITICS[arm]
    variant = style if self.name == 'arithmetic' else f'{style},{self.name}'
    if arm != RL:
      return self.run(
        f'verifier_math.py:{variant}',
        style,
        *self.domain_flags('data'),
        *self.windows(DOMAINS[self.name].asked, 4, self.size.critic_steps),
      )
    updates = self.size.updates
    return self.run(
      f'verifier_math.py:{variant},rl',
      f'{style}_rl',
      f'--config.policy.workdir={self.critic(SFT)}',
      *self.domain_flags('problems'),
      f'--config.train.updates={updates}',
      f'--config.train.evaluate_every={max(1, updates // 3)}',
      f'--config.train.checkpoint_every={max(1, updates // 3)}',
    )

  def judge(self, arm: str, where: str, samples: int) -> pathlib.Path:
    """Judges the chains of a kind, with a threshold from others of it."""
    flags = []
    if arm in CRITICS:
      flags += [
        '--config.prm.kind=generative',
        f'--config.prm.generative.path={self.critic(arm)}',
        f'--config.prm.generative.style={CRITICS[arm]}',
        '--config.prm.generative.ask=chain',
        f'--config.prm.generative.samples={samples}',
        '--config.prm.generative.sampling.max_tokens=256',
        # One critique is the most likely one.
        f'--config.prm.generative.sampling.temperature={float(samples > 1)}',
      ]
    else:
      workdir = self.prm()
      path = workdir / 'orm' if arm == ORM else workdir
      flags.append(f'--config.prm.path={path}')
    if arm not in STEPWISE:
      flags.append('--config.targets.supervision=outcome')
    variant = '' if self.name == 'arithmetic' else f':{self.name}'
    kind = where.replace(' ', '_')
    return self.run(
      f'evaluate_math.py{variant}',
      f'judged/{arm.replace(" ", "_")}_{samples}_{kind}',
      *self.domain_flags('data', where),
      f'--config.data.test_samples={CANDIDATES}',
      f'--config.evaluation.ns=(1, {CANDIDATES})',
      '--config.evaluation.aggregates=("min", "last")',
      *flags,
    )


def arms() -> Iterator[tuple[str, int]]:
  """Yields every arm with its numbers of critiques; 0 for none."""
  yield PRM, 0
  yield ORM, 0
  for arm in CRITICS:
    for samples in SAMPLES:
      yield arm, samples


def measure(seed: Seed, arm: str, where: str, samples: int) -> dict[str, Any]:
  """Returns what an arm is worth, and what it costs."""
  judged = read_results(seed.judge(arm, where, samples))
  results = judged['results']
  curves, cost = results['best_of_n'], results['cost']
  method = 'prm_min' if arm in STEPWISE else 'orm'
  found = {
    'seed': seed.seed,
    'git_commit': judged['manifest']['git_commit'],
    'arm': arm,
    'samples': samples,
    'chains': where,
    'picked': curves[method]['mean'][-1],
    'picked_ci95': curves[method]['ci95'][-1],
    'majority': curves['majority']['mean'][-1],
    'oracle': curves['oracle']['mean'][-1],
    'flops': cost['flops'] / cost['scored'],
    'unread': cost['unread_critiques'],
  }
  if arm in STEPWISE:
    (localised,) = results['localisation'].values()
    found |= {name: localised[name] for name in ('f1', 'ci95')}
    found['noise'] = localised['baselines']['noise']['f1']
  return found


def rows_of(
  document: Mapping[str, Any], name: str, arm: str, where: str, samples: int
) -> list[dict[str, Any]]:
  """Returns what was measured, one of each seed."""
  return [
    row
    for row in document['results'].get(name, ())
    if (row['arm'], row['chains'], row['samples']) == (arm, where, samples)
  ]


def summary(rows: Sequence[Mapping[str, Any]], value: str, ci95: str) -> str:
  """Formats a mean over seeds with its interval; '' where there is none."""
  if not rows or value not in rows[0]:
    return ''
  effect = over([row[value] for row in rows], [row[ci95] for row in rows])
  shown = percent(effect.value)
  if effect.ci95:
    low, high = effect.ci95
    shown += f' ({percent(max(0.0, low))} to {percent(high)})'
  return shown


def render(document: Mapping[str, Any]) -> str:
  """Makes the tables: what is measured on chains as in training, and others."""
  if not document['results']:
    return 'No domain has been run at full size yet.'
  lines = []
  for name in document['results']:
    rows = []
    for arm, samples in arms():
      like = rows_of(document, name, arm, LIKE, samples)
      if not like:
        continue
      cost = mean([row['flops'] for row in like])
      cells = [arm, str(samples or ''), f'{cost / 1e6:,.0f}']
      for where in (LIKE, LONGER, OTHERS):
        found = rows_of(document, name, arm, where, samples)
        cells.append(summary(found, 'f1', 'ci95'))
        cells.append(summary(found, 'picked', 'picked_ci95'))
      rows.append(cells)
    kinds = (LIKE, LONGER, OTHERS)
    heads = ['verifier', 'critiques', 'MFLOPs a chain']
    heads += [f'{what}, {kind}' for kind in kinds for what in ('F1', 'picked')]
    seeds = {row['seed'] for row in document['results'][name]}
    of = f'{len(seeds)} seed{"s" * (len(seeds) > 1)}'
    lines += [f'{name}, {of}:', '', table(heads, rows), '']
    for kind in kinds:
      found = rows_of(document, name, PRM, kind, 0)
      shown = [
        f'{method} {percent(mean([row[method] for row in found]))}'
        for method in ('majority', 'oracle', 'noise')
      ]
      lines.append(f'- {kind}: {", ".join(shown)} (F1)')
    lines.append('')
  return '\n'.join(lines).rstrip()


def draw(document: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws F1 and best-of-N accuracy against FLOPs."""
  results = document['results']
  figure, panels = figures.make_panels(
    2 * len(results), (7 * len(results), 3.6)
  )
  for i, name in enumerate(results):
    for panel, value, title in zip(
      panels[2 * i : 2 * i + 2],
      ('f1', 'picked'),
      ('first-error F1', f'best of {CANDIDATES}'),
      strict=True,
    ):
      for number, arm in enumerate((PRM, ORM, *CRITICS)):
        points = []
        for samples in (0, *SAMPLES):
          rows = rows_of(document, name, arm, LIKE, samples)
          if rows and value in rows[0]:
            cost, found = (
              mean([row[k] for row in rows]) for k in ('flops', value)
            )
            points.append((cost, 100 * found))
        if points:
          panel.plot(
            *zip(*points, strict=True),
            'o-',
            color=f'C{number}',
            label=arm,
            markersize=4,
          )
      panel.set_ylim(0, 102)
      panel.set_xscale('log')
      panel.set_title(f'{name}: {title}')
      panel.set_xlabel('FLOPs a chain')
  panels[0].set_ylabel('%')
  panels[1].legend(fontsize=7)
  figures.save(figure, path)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  parser.add_argument(
    '--domains',
    nargs='*',
    choices=DOMAINS,
    default=tuple(DOMAINS),
    help='default: all; without a name the table is made again',
  )
  args = command_line.parse(parser, free=('domains', 'seeds'))
  size = QUICK if args.quick else Size()
  runner = Runner(args.workdir, args.jobs)
  known = command_line.read_known(args).get('results', {})
  for name in args.domains:

    def run_seed(seed: int, name: str = name) -> list[dict[str, Any]]:
      own = Seed(runner, name, seed, size)
      return [
        measure(own, arm, where, samples)
        for arm, samples in arms()
        for where in (LIKE, LONGER, OTHERS)
        if where == LIKE or samples != SAMPLES[-1]
      ]

    found = runner.all(run_seed, [(seed,) for seed in args.seeds])
    others = [r for r in known.get(name, ()) if r['seed'] not in args.seeds]
    rows = [*itertools.chain(*found), *others]
    known[name] = sorted(rows, key=lambda row: row['seed'])
  document = command_line.made_by(args) | {
    'results': {name: known[name] for name in DOMAINS if name in known},
  }
  if known:
    draw(document, args.output / 'figure.svg')
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
