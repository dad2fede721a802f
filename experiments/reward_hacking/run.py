"""A weak PRM as the only reward: which form of reward is hacked, and when?

    pip install -e '.[experiments]'
    python -m experiments.reward_hacking.run --workdir /tmp/reward_hacking

For each seed a policy is trained by imitation, and a PRM on few of the solver's
chains. Then the policy learns from that PRM in every form of reward, with all
else equal. Writes results.json, figure.svg and the table of README.md beside
this file.
"""

from collections.abc import Mapping
from typing import Any

from experiments import command_line
from experiments.reward_hacking import figure
from experiments.rl_process_vs_outcome import tables
from experiments.rl_runs import Case, Curve, learn, make_policy, make_prm
from experiments.runner import Runner, slug
from prm_jax.runtime.errors import exit_on_user_error

OPERATIONS, RATE = 5, 2e-4
# The weak PRM is trained on this many chains, with the solver's own few slips.
LABELLED, SLIP = 1024, 0.03
ALONE = '--config.reward.outcome_weight=0'
RETURN = '--config.advantage.process=return'
CHAIN = '--config.advantage.process=chain'
FORMS: dict[str, tuple[str, ...]] = {
  'sum': (CHAIN, ALONE, '--config.reward.centre=0'),
  'sum, centred': (CHAIN, ALONE),
  'mean': (CHAIN, ALONE, '--config.reward.normalise=steps'),
  'min form': (RETURN, ALONE, '--config.reward.form=min_form'),
  'clip': (RETURN, ALONE, '--config.reward.form=clip'),
  'delta': (RETURN, ALONE, '--config.reward.form=delta'),
  'each step against its place': (ALONE,),
  'the same, and outcome': (),
}


def make_case(runner: Runner, seed: int) -> Case:
  return Case(runner, f'seed_{seed}', seed, OPERATIONS)


def make_models(runner: Runner, seed: int, quick: bool) -> None:
  """Trains the policy and the PRM of a seed."""
  imitation, prm = (40, 40) if quick else (400, 1200)
  case = make_case(runner, seed)
  make_policy(case, imitation)
  make_prm(case, prm, LABELLED, SLIP)


def run_form(runner: Runner, seed: int, form: str, quick: bool) -> Curve:
  """Trains the policy of a seed with one form of reward."""
  case = make_case(runner, seed)
  return learn(
    case,
    slug(form),
    case.policy,
    'grpo',
    20 if quick else 150,
    f'--config.prm.path={case.prm}',
    f'--config.optim.lr={RATE}',
    '--config.optim.schedule=constant',
    '--config.reward.weight=1',
    *FORMS[form],
  )


def render(document: Mapping[str, Any]) -> str:
  """Makes the table of where each form ends."""
  return tables.ends_table(document['results'])


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  parser.add_argument('--forms', nargs='+', choices=FORMS, default=[*FORMS])
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  runner.all(make_models, [(runner, seed, args.quick) for seed in args.seeds])
  pairs = [(form, seed) for form in args.forms for seed in args.seeds]
  calls = [(runner, seed, form, args.quick) for form, seed in pairs]
  curves: dict[str, list[Curve]] = {form: [] for form in args.forms}
  for (form, _), curve in zip(pairs, runner.all(run_form, calls), strict=True):
    curves[form].append(curve)
  found = tables.summarise(
    curves,
    {form: {RATE: of_seeds[0]} for form, of_seeds in curves.items()},
    dict.fromkeys(args.forms, RATE),
    args.seeds,
  )
  document = command_line.about(args) | {
    'labelled_chains': LABELLED,
    'results': found,
  }
  figure.draw(found, args.output / 'figure.svg')
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
