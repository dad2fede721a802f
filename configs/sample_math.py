"""Sample 64 chains a problem from a policy.

    python -m prm_jax.main --config configs/sample_math.py \
      --config.policy.kind=workdir --config.policy.workdir=/tmp/policy \
      --workdir /tmp/samples

Samples the policy that configs/policy_math.py trained, on the training problems
of configs/prm_math.py; every chain's final answer is checked. WORKDIR/data has
the chains, problem by problem, WORKDIR/chains.jsonl the same to read, and
WORKDIR/ledger.json says what they took. The same command goes on where an
earlier one stopped.

On a CPU set --config.cpu_devices to the number of cores: the slots are split
between them (experiments/speed/SAMPLING.md).

Without a policy the solver that wrote the training chains is asked: 65,536
chains, 50% of them right, in half a minute on two cores.

Variants, comma separated, as in `configs/sample_math.py:gsm8k,tiny`:

    gsm8k  problems of gsm8k/train.jsonl below --config.problems.root or
           PRM_JAX_DATA; any file with problem or question, and answer, will do
    small  a minute or two, of arithmetic; its test problems are those of
           every other config of this name
    tiny   a few problems: to see that everything runs
"""

import ml_collections


def base() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.task = 'sample'
  config.name = 'Samples'
  config.seed = 0
  config.cpu_devices = 0  # 0: whatever JAX finds
  config.samples = 64  # of a problem
  config.problems = dict(
    kind='arithmetic',
    split='train',
    root='',  # of files; '': the environment variable PRM_JAX_DATA
    path='gsm8k/train.jsonl',
    # The first so many of configs/prm_math.py's, whose dev and test they avoid.
    train_problems=1024,
    dev_problems=128,
    test_problems=400,
    arithmetic=dict(
      modulus=10,
      operations=5,
      wrong_facts=0.18,
      use_wrong=0.75,
      slip=0.03,
      solver_seed=0,
      ops='+-*',
    ),
  )
  config.policy = dict(
    kind='solver',  # the one that wrote the training chains
    solver=config.problems.arithmetic.to_dict(),
    workdir='',  # of a policy that was trained
    sampling=dict(
      temperature=1.0,
      top_k=0,
      top_p=1.0,
      min_p=0.0,
      slots=64,
      max_tokens=256,
    ),
    cache='',  # where a server's answers are kept; '': WORKDIR/replies
    endpoint=dict(
      base_url='',
      model='',
      api_key_variable='',
      concurrency=16,
      timeout=300.0,
      attempts=8,  # the waits between them add up to half a minute
      max_failed_in_a_row=32,
      max_reply_bytes=2**24,
      send_stop=True,  # False for servers that refuse it
      api='chat',  # or completions
      continues=False,  # a chat's server goes on with the steps it is sent
      system=(
        'Solve the problem step by step, one step a line and no blank lines. '
        'The last line is "#### " and then the final answer alone.'
      ),
      prompt='{problem}',
      separator='\n',
      temperature=1.0,
      top_p=1.0,
      max_tokens=1024,
      send_seed=True,
      extra='{}',  # JSON: more fields of every request
      extra_after_steps='{}',  # and of those that have steps already
    ),
  )
  config.concurrent = 64  # problems that a process has in flight
  config.price = dict(tokens=0.0, prompt_tokens=0.0)  # US dollars a million
  return config


def gsm8k(config: ml_collections.ConfigDict) -> None:
  config.name = 'Samples of GSM8K problems'
  config.problems.kind = 'file'


def small(config: ml_collections.ConfigDict) -> None:
  config.name += ' (small)'
  config.problems.test_problems = 100
  config.samples = 2


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  config.problems.update(train_problems=16, dev_problems=8, test_problems=8)
  config.samples = 4


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """The config with the variants in `arg` applied in order."""
  config = base()
  variants = {'gsm8k': gsm8k, 'small': small, 'tiny': tiny}
  for name in filter(None, arg.split(',')):
    if name not in variants:
      raise ValueError(
        f'unknown variant {name!r} of configs/sample_math.py: expected '
        f'{", ".join(variants)}'
      )
    variants[name](config)
  return config.lock()
