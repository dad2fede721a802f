"""A weak PRM as the only reward: which form of reward is fooled, and when.

    pip install -e '.[experiments]'
    python -m experiments.reward_hacking.run --workdir /tmp/reward_hacking

For each seed a policy is trained by imitation, and a PRM on few of the solver's
chains. Then the policy learns from that PRM in every form, all else equal. What
is there already is not made again. Writes results.json, figure.svg and the
table of README.md beside this file.
"""

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.reward_hacking import figure
from experiments.rl_process_vs_outcome import tables
from experiments.rl_runs import Curve, learn, make_policy, make_prm, read_curve
from experiments.runner import Runner
from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
COMMAND = 'python -m experiments.reward_hacking.run --workdir DIR'
SEEDS = (0, 1, 2)
OPERATIONS, RATE = 5, 2e-4
# Chains that the weak PRM has labels of, with the solver's own few slips.
LABELLED, SLIP = 1024, 0.03
ALONE = '--config.reward.outcome_weight=0'
TO_GO = '--config.advantage.process=to_go'
CHAIN = '--config.advantage.process=chain'
FORMS: dict[str, tuple[str, ...]] = {
  'sum': (CHAIN, ALONE, '--config.reward.centre=0'),
  'sum, centred': (CHAIN, ALONE),
  'mean': (CHAIN, ALONE, '--config.reward.normalise=steps'),
  'min form': (TO_GO, ALONE, '--config.reward.form=min_form'),
  'clip': (TO_GO, ALONE, '--config.reward.form=clip'),
  'delta': (TO_GO, ALONE, '--config.reward.form=delta'),
  'each step against its place': (ALONE,),
  'the same, and outcome': (),
}


def models(runner: Runner, seed: int, quick: bool) -> None:
  imitation, prm = (40, 40) if quick else (400, 1200)
  make_policy(runner, f'seed_{seed}/policy', seed, OPERATIONS, imitation)
  make_prm(runner, f'seed_{seed}/prm', seed, OPERATIONS, prm, LABELLED, SLIP)


def run_form(runner: Runner, seed: int, form: str, quick: bool) -> Curve:
  folder = f'seed_{seed}'
  done = learn(
    runner,
    f'{folder}/{form.replace(", ", "_").replace(" ", "_")}',
    seed,
    OPERATIONS,
    20 if quick else 150,
    runner.workdir / folder / 'policy',
    'grpo',
    f'--config.prm.path={runner.workdir / folder / "prm"}',
    f'--config.optim.lr={RATE}',
    '--config.reward.weight=1',
    *FORMS[form],
  )
  return read_curve(done)


def render(document: Mapping[str, Any]) -> str:
  """The table, Markdown."""
  return tables.ends_table(document['results'])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--jobs', type=int, default=2, help='side by side')
  parser.add_argument('--seeds', type=int, nargs='+', default=SEEDS)
  parser.add_argument('--forms', nargs='+', choices=FORMS, default=[*FORMS])
  parser.add_argument(
    '--quick', action='store_true', help='to see that it runs'
  )
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args = parser.parse_args()
  whole = [*args.forms] == [*FORMS] and [*args.seeds] == [*SEEDS]
  if not (whole and not args.quick) and args.output == HERE:
    parser.error('some forms or seeds only: --output has to be another folder')
  runner = Runner(args.workdir, args.jobs)
  runner.all(models, [(runner, seed, args.quick) for seed in args.seeds])
  pairs = [(form, seed) for form in args.forms for seed in args.seeds]
  calls = [(runner, seed, form, args.quick) for form, seed in pairs]
  curves: dict[str, list[Curve]] = {form: [] for form in args.forms}
  for (form, _), curve in zip(pairs, runner.all(run_form, calls), strict=True):
    curves[form].append(curve)
  found = tables.summarise(
    curves,
    {form: {RATE: of_seeds[0]} for form, of_seeds in curves.items()},
    dict.fromkeys(args.forms, RATE),
  )
  document = {
    'command': COMMAND,
    'git_commit': manifest.git_commit(),
    'seeds': list(args.seeds),
    'labelled_chains': LABELLED,
    'results': found,
  }
  manifest.write_json(args.output / 'results.json', document)
  figure.draw(found, args.output / 'figure.svg')
  text = render(document)
  if (args.output / 'README.md').exists():
    readme_table.fill(args.output / 'README.md', text)
  print(text)


if __name__ == '__main__':
  main()
