"""The `:tiny` form of every kind of job, and of their main variants.

In stages: a job may read the workdirs of jobs of earlier stages, '{tmp}/NAME'.
"""

import pathlib
from collections.abc import Sequence

POLICY = '--config.policy.workdir={tmp}/policy'
PRM = '--config.prm.path={tmp}/prm'
TRAINED = (
  '--config.policy.kind=workdir',
  POLICY,
  '--config.policy.sampling.slots=8',
)
SAMPLES = (
  '--config.chains.kind=workdir',
  '--config.chains.workdir={tmp}/sample_trained',
)
# Name of a job -> its config, and its other flags. Each stage may read what
# earlier stages wrote.
STAGES: tuple[dict[str, tuple[str, ...]], ...] = (
  {
    'prm': ('prm_math:tiny',),
    'policy': ('policy_math:tiny',),
    'prm_orm': ('prm_math:orm,tiny',),
    'sample': ('sample_math:tiny',),
    'label_verifier': ('label_math:verifier,tiny',),
    'label_rollouts': ('label_math:rollouts,tiny',),
    'label_omega': ('label_math:omega,tiny',),
    'label_corruption': ('label_math:corruption,tiny',),
    **{
      f'search_{method}': (f'search_math:{method},tiny',)
      for method in (
        *('best_of_n', 'majority', 'weighted_vote', 'beam', 'dvts'),
        *('lookahead', 'rebase', 'mcts', 'refine', 'early_rejection'),
      )
    },
    'prm_two_class': (
      'prm_math:tiny',
      '--config.head.kind=two_class',
      '--config.loss.name=cross_entropy',
      '--config.loss.lm_weight=0.5',
      '--config.orm_baseline=False',
      '--config.train.microbatches=2',
    ),
    'prm_words': ('prm_math:words,tiny',),
    'critic': ('verifier_math:r_prm,tiny',),
  },
  {
    'evaluate_critic': (
      'evaluate_math:critic,tiny',
      '--config.prm.generative.path={tmp}/critic',
      '--config.prm.generative.style=r_prm',
      '--config.prm.generative.ask=steps',
      '--config.prm.generative.sampling.max_tokens=24',
    ),
    'prm_from_run': (
      'prm_math:from_run,tiny',
      '--config.base={tmp}/policy',
    ),
    'prm_on_labels': (
      'prm_math:tiny',
      '--config.data.labels={tmp}/label_rollouts',
      '--config.targets.hard_above=0.0',
    ),
    # Chains that fit the window of the PRM that label_active scores them with.
    'sample_trained': (
      'sample_math:tiny',
      *TRAINED,
      '--config.policy.sampling.max_tokens=24',
    ),
    'search_trained': (
      'search_math:beam,tiny',
      *TRAINED,
      '--config.prm.kind=workdir',
      PRM,
    ),
    **{
      f'rl_{variant}': (f'rl_math:{variant},tiny', POLICY, PRM)
      for variant in ('grpo', 'rloo', 'ppo', 'exact')
    },
    **{
      f'rl_{variant}': (f'rl_math:{variant},tiny', POLICY)
      for variant in ('outcome', 'prime')
    },
  },
  {
    'label_active': (
      'label_math:active,tiny',
      *SAMPLES,
      '--config.prm.path={tmp}/prm',
    ),
    'label_consensus': (
      'label_math:consensus,tiny',
      '--config.chains.kind=workdir',
      '--config.chains.workdir={tmp}/label_rollouts',
      '--config.agrees_with={tmp}/label_verifier',
    ),
  },
)
# Run too where PRM_JAX_DATA is set.
ON_DATA = {
  'prm_human': ('prm_math:human,tiny',),
  'prm_smollm2': ('prm_math:smollm2,lora,tiny',),
  'prm_frozen': ('prm_math:smollm2,frozen,tiny',),
  'policy_smollm2': ('policy_math:smollm2,lora,tiny',),
}


def command_line(
  job: Sequence[str], folder: pathlib.Path, name: str
) -> list[str]:
  """Returns the flags of a job whose workdir, and others', are in a folder."""
  config, *flags = job
  file, _, variants = config.partition(':')
  return [
    f'--config=configs/{file}.py:{variants}',
    f'--workdir={folder / name}',
    *(flag.format(tmp=folder) for flag in flags),
  ]
