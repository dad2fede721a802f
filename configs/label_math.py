"""Label chains without people.

    python -m prm_jax.main --config configs/label_math.py:verifier \
      --workdir /tmp/labels

Chains in, the same chains with step labels out, in WORKDIR/data; WORKDIR/
ledger.json says what they cost. The same command goes on where an earlier one
stopped, and tries again what failed for want of answers; what was labelled
without some of them stays and is counted. concurrent, price and where a server
is may change on the way. Train on them with

    python -m prm_jax.main --config configs/prm_math.py \
      --config.data.labels=/tmp/labels --workdir /tmp/prm_on_labels

and, for what the labels are, with these flags too:

    verifier, judge, corruption
                none: a step is 1 or 0, and what follows the first 0 is masked
    rollouts    hard: --config.targets.hard_above=0.0 (any rollout succeeded) or
                0.5; soft: --config.targets.after_first_error=keep, for 0 of 8
                may be bad luck; of counts: the same, with
                --config.loss.name=beta_binomial --config.head.kind=two_class
                --config.orm_baseline=False (outcomes have no counts)
    omega       --config.targets.hard_above=T, where omega.threshold was T
    consensus   those of the source whose labels it keeps; hard_above that of
                consensus.hard_above

By default the chains are the 8,192 training chains of configs/prm_math.py, and
each of these takes half a minute or less on two cores: verifier labels all of
them; rollouts, too, with 262,144 completions of the solver that wrote them;
omega 7,663 with 84,624 (the others are too hard for it); corruption 3,417, the
right ones; consensus keeps 72% of what rollouts and verifier labelled.
--config.chains.kind=workdir --config.chains.workdir=WORKDIR takes those of a
sampling (configs/sample_math.py) or labelling job, --config.chains.kind=files
those of files in any format that is read (chains: our own chains.jsonl).

Variants, comma separated, as in `configs/label_math.py:rollouts,tiny`:

    verifier    an exact calculator; unit tests, for code
    rollouts    Math-Shepherd: how often a policy ends right from each step
    omega       OmegaPRM: the first error by binary search with rollouts
    judge       a language model names the first wrong step; needs a server:
                --config.policy.endpoint.base_url and .model; its answers are
                kept in WORKDIR/replies, and WORKDIR/usage says what it gave
    corruption  right chains, an error planted in half of them
    consensus   no new labels: the chains of chains.workdir whose labels agree
                with those of the labelling job agrees_with
    active      the most convincing wrong answers of chains.workdir, a sampling
                job, by the PRM in prm; labelled by the verifier, or by the
                source of a variant before it
    small       a minute or two, of arithmetic; its test problems are those of
                every other config of this name
    tiny        a few chains: to see that everything runs
"""

import ml_collections


def base() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.task = 'label'
  config.name = 'Labels'
  config.seed = 0
  config.cpu_devices = 0  # 0: whatever JAX finds
  config.chains = dict(
    kind='arithmetic',
    workdir='',
    root='',  # of files; '': the environment variable PRM_JAX_DATA
    files=(('gsm8k/train.jsonl', 'gsm8k'),),  # (path, format of the reader)
    on_error='stop',
    # As in configs/prm_math.py: equal numbers give its training chains.
    train_problems=8192,
    train_samples=1,
    dev_problems=128,
    dev_samples=8,
    test_problems=400,
    test_samples=64,
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
  config.select = ''
  config.source = 'verifier'
  config.concurrent = 512  # chains that a process has in flight
  config.price = dict(tokens=0.0, prompt_tokens=0.0)  # US dollars a million
  config.policy = dict(
    kind='solver',  # or workdir; or endpoint, an OpenAI-compatible server
    solver=config.chains.arithmetic.to_dict(),
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
  config.verifier = dict(
    unchecked='unknown',
    limits=dict(  # of a program under its unit tests
      wall_seconds=10.0,
      cpu_seconds=10,
      memory_bytes=512 << 20,
      disk_bytes=16 << 20,
      processes=16,
      files=128,
      output_bytes=64 << 10,
    ),
  )
  config.rollouts = dict(
    samples=8,
    round_size=0,
    threshold=0.5,
    delta=0.05,
    stop_after_first_zero=False,
  )
  config.omega = dict(
    samples=8,
    round_size=0,
    threshold=0.0,
    delta=0.05,
    unvisited='implied',
    searches=0,
    alpha=0.5,
    beta=0.9,
    length=500,
    c_puct=0.125,
  )
  config.judge = dict(samples=1)
  config.corruption = dict(
    kinds=('operand', 'operator', 'result', 'copied_number', 'skipped_step'),
    right_share=0.5,
    seed=0,
  )
  # Names of the two sources; '': what their jobs say.
  config.consensus = dict(first='', second='', hard_above=0.0)
  config.agrees_with = ''
  config.active = dict(
    budget=8,
    method='active',
    aggregate='prod',
    wrong_share=0.8,
    batch_size=1024,
    seed=0,
  )
  config.prm = ''
  return config


def judge(config: ml_collections.ConfigDict) -> None:
  set_source(config, 'judge')
  config.policy.kind = 'endpoint'


def consensus(config: ml_collections.ConfigDict) -> None:
  config.chains.kind = 'workdir'
  config.update(name='Labels that agree', select='consensus', source='given')


def active(config: ml_collections.ConfigDict) -> None:
  config.chains.kind = 'workdir'
  config.name += ' of the most convincing wrong answers'
  config.select = 'active'


def small(config: ml_collections.ConfigDict) -> None:
  config.name += ' (small)'
  config.chains.update(train_problems=2048, test_problems=100)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  config.chains.update(train_problems=128, dev_problems=8, test_problems=8)
  config.rollouts.samples = 2
  config.omega.samples = 2


def set_source(config: ml_collections.ConfigDict, name: str) -> None:
  config.update(name=f'Labels by {name}', source=name)


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """The config with the variants in `arg` applied in order."""
  config = base()
  variants = {
    'verifier': lambda c: set_source(c, 'verifier'),
    'rollouts': lambda c: set_source(c, 'rollouts'),
    'omega': lambda c: set_source(c, 'omega'),
    'judge': judge,
    'corruption': lambda c: set_source(c, 'corruption'),
    'consensus': consensus,
    'active': active,
    'small': small,
    'tiny': tiny,
  }
  for name in filter(None, arg.split(',')):
    if name not in variants:
      raise ValueError(
        f'unknown variant {name!r} of configs/label_math.py: expected '
        f'{", ".join(variants)}'
      )
    variants[name](config)
  return config.lock()
