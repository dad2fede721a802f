"""Sample 64 chains per problem from a policy.

    python -m prm_jax.main --config configs/sample_math.py \
      --config.policy.kind=workdir --config.policy.workdir=/tmp/policy \
      --workdir /tmp/samples

Samples the policy that configs/policy_math.py trained, on the training problems
of configs/prm_math.py, and checks every chain's final answer. WORKDIR/data has
the chains, problem by problem, WORKDIR/chains.jsonl the same to read, and
WORKDIR/ledger.json what they cost. The same command resumes an interrupted job.

On a CPU set --config.cpu_devices to the number of cores: they share the work
(experiments/speed/SAMPLING.md).

Without a policy the job samples the solver that wrote the training chains:
65,536 chains, 50% of them right, in half a minute on two cores.

Variants, comma separated, as in `configs/sample_math.py:gsm8k,tiny`:

    gsm8k  problems of gsm8k/train.jsonl below --config.problems.root or
           PRM_JAX_DATA; any file with problem or question, and answer, will do
    small  a minute or two, of arithmetic; its test problems are those of
           every other config's `small`
    tiny   a few problems: to see that everything runs

For models of published size, with --config.policy.workdir; before there is such
a policy, python -m prm_jax.aot says what the job needs:

    qwen2_5_math_7b  on the four chips of a TPU v5e host
    qwen2_5_72b      on the four chips of a TPU v5p host
"""

import ml_collections

from configs import common


def base() -> ml_collections.ConfigDict:
  return common.base(
    'sample',
    name='Samples',
    # The first of the 8,192 of configs/prm_math.py; dev and test are the same.
    problems=dict(train_problems=1024),
  )


def gsm8k(config: ml_collections.ConfigDict) -> None:
  config.name = 'Samples of GSM8K problems'
  config.problems.kind = 'file'


def small(config: ml_collections.ConfigDict) -> None:
  common.check_drawn(config, 'set problems.count instead')
  config.name += ' (small)'
  config.problems.test_problems = 100
  config.samples = 2


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  common.tiny_aot(config)
  config.problems.update(train_problems=16, dev_problems=8, test_problems=8)
  config.problems.count = 16  # of a file, too
  config.samples = 4


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'gsm8k': gsm8k,
    'small': small,
    'tiny': tiny,
    'qwen2_5_math_7b': common.opened('qwen2_5_math_7b'),
    'qwen2_5_72b': common.opened('qwen2_5_72b'),
  }
  return common.apply('configs/sample_math.py', base(), variants, arg)
