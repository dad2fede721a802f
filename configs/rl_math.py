"""Train a policy with per-step rewards.

    python -m prm_jax.main --config configs/rl_math.py:grpo \
      --config.policy.workdir=/tmp/policy --config.prm.path=/tmp/prm_math \
      --workdir /tmp/rl

Goes on with the policy that configs/policy_math.py trained: groups of chains
for the training problems, scored step by step by the PRM of
configs/prm_math.py and at their end by the verifier. Held-out problems show
verified accuracy beside the PRM's view all along: where the latter rises and
the former falls, the run says that its reward is hacked, and keeps the chains.
WORKDIR is a policy as any other: configs/sample_math.py, search_math.py and
label_math.py take it.

Of the policy's chains for test problems 50% are right before, and 97% after 400
updates of 64 chains, in eleven minutes on two CPU cores beside other work.

Variants, comma separated, as in `configs/rl_math.py:rloo,tiny`:

    grpo     relative to the group's mean and deviation
    rloo     with the mean of the others as baseline
    ppo      with a value head, four minibatches twice
    outcome  the verifier's word alone, without a PRM
    prime    an implicit PRM, which starts as the policy and learns from every
             batch's outcomes (PRIME); rloo
    exact    in place of a PRM exact step labels of the arithmetic domain
    small    a minute or two, of arithmetic; its test problems are those of
             every other config of this name
    tiny     seconds instead of minutes: to see that everything runs

With a policy of configs/policy_math.py:qwen2_5_math_7b:

    qwen2_5_math_7b  on GSM8K, on TPU v5e:16x16; python -m prm_jax.aot says what
                     it needs before there is a policy
"""

import ml_collections


def base() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.task = 'rl'
  config.name = 'RL with step rewards on modular arithmetic'
  config.seed = 0
  config.cpu_devices = 0  # 0: whatever JAX finds
  config.mesh = dict(replica=1, fsdp=-1, model=1)

  config.policy = dict(workdir='')  # of the policy that is to be improved
  # What prm_jax.aot compiles for; without policy.workdir for such a policy,
  # whose chains have so many tokens, and without prm.path a PRM as large.
  config.aot = dict(
    topology='', max_length=512, model=ml_collections.ConfigDict()
  )
  # How it is computed; '' and -1: as it was trained.
  config.model = dict(dtype='', param_dtype='', remat='', scan_unroll=-1)
  config.lora = dict(
    rank=0,  # the backbone itself is trained
    alpha=16.0,
    targets=(
      'q_proj',
      'k_proj',
      'v_proj',
      'o_proj',
      'gate_proj',
      'up_proj',
      'down_proj',
    ),
  )
  config.sampling = dict(
    slots=64,
    max_tokens=48,
    devices=0,  # so many of all that sample and score beside training
  )
  config.prm = dict(
    kind='workdir',  # exact, of the arithmetic domain; implicit; or none
    # Of a trained PRM, or a published one: a folder, hf://owner/name. Of a
    # policy that an implicit PRM is at first; '': the one to be improved.
    path='',
    style='',  # of a published one that does not tell
    dtype='',  # that it is kept and computed in; '': as it was trained
    exact='steps',  # that a step is right; or value: that the solver ends right
    beta=0.05,  # of implicit: beta * log(PRM / first policy) is the reward
    # An implicit PRM learns before it scores; the rest is as in optim.
    online=dict(on=True, lr=1e-4),
  )
  # The first policy, where something is compared with it; '': as trained.
  config.reference = dict(param_dtype='', offload=False)  # to the host's memory
  config.reward = dict(
    form='raw',
    weight=0.5,  # more is learned faster, and what the PRM overlooks, too
    outcome_weight=1.0,
    centre=0.5,  # a score that is worth nothing
    temperature=0.05,  # of min_form
    threshold=0.5,  # of clip
    normalise='none',  # or steps
    kl_weight=0.0,  # of the KL from the first policy, taken from the reward
  )
  config.advantage = dict(
    estimator='grpo',
    process='step',  # whom a step's reward is for: step, to_go, chain
    baseline='position',  # what it is compared with; or group
    scale=True,
    eps=0.02,  # is added to deviations; 1e-4 scales up what hardly differs
    discount=1.0,  # of gae
    trace=0.95,
  )
  config.loss = dict(
    clip_low=0.2,
    clip_high=0.2,
    reduce='token',
    kl_weight=0.005,  # of the KL from the first policy, in the loss
    kl_estimator='k3',
    entropy_weight=0.0,
    value_weight=0.5,
    value_clip=0.2,
  )
  config.optim = dict(
    name='adamw',
    lr=2e-4,
    warmup=5,
    schedule='cosine',
    b1=0.9,
    b2=0.95,
    weight_decay=0.0,
    clip=1.0,
    moments='float32',
  )
  config.train = dict(
    updates=400,
    problems=8,  # of an update
    samples=8,  # of each
    epochs=1,
    minibatches=1,
    microbatches=1,
    staleness=0,  # updates that sampling may be behind, to run beside training
    kl_stop=0.0,
    log_every=1,
    evaluate_every=20,
    checkpoint_every=20,
    keep=2,
    max_skipped_in_a_row=10,
  )
  config.problems = dict(
    kind='arithmetic',
    root='',  # of files; '': the environment variable PRM_JAX_DATA
    path='gsm8k/train.jsonl',
    # As in configs/policy_math.py: equal numbers give its problems.
    train_problems=8192,
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
  # While it trains, on the dev problems; and in the end, on the test problems.
  config.held_out = dict(path='', problems=64, samples=4)
  config.test = dict(path='gsm8k/test.jsonl', problems=0, samples=16)
  config.evaluation = dict(ns=(1, 2, 4, 8, 16), resamples=2000)
  config.alarm = dict(stop=False)  # a run whose reward is hacked ends there
  config.metrics = dict(tensorboard=False, wandb_project='')
  return config


def ppo(config: ml_collections.ConfigDict) -> None:
  config.advantage.estimator = 'gae'
  # Its returns are compared with no group: where most steps are wrong, raw
  # scores pay best for ending at once. A potential leaves what is best.
  if config.reward.form == 'raw':
    config.reward.form = 'potential'
  config.train.update(epochs=2, minibatches=4)


def outcome(config: ml_collections.ConfigDict) -> None:
  config.prm.kind = 'none'
  config.reward.update(form='outcome', weight=0.0)


def prime(config: ml_collections.ConfigDict) -> None:
  config.prm.kind = 'implicit'
  config.reward.update(weight=1.0, centre=0.0)  # of log-ratios
  config.advantage.update(estimator='rloo', process='to_go', baseline='group')


def qwen2_5_math_7b(config: ml_collections.ConfigDict) -> None:
  config.name = 'RL with step rewards on GSM8K'
  config.aot.topology = 'v5e:16x16'
  config.aot.model = ml_collections.ConfigDict(
    dict(
      vocab_size=152_064,
      d_model=3584,
      n_layers=28,
      n_heads=28,
      n_kv_heads=4,
      head_dim=128,
      d_ff=18_944,
      qkv_bias=True,
      tie_embeddings=False,
    )
  )
  config.mesh.model = 4
  config.model.update(
    dtype='bfloat16', param_dtype='float32', remat='full', scan_unroll=1
  )
  config.sampling.update(slots=1024, max_tokens=320)
  config.optim.lr = 1e-6
  config.train.update(problems=64, samples=16, minibatches=4)
  config.prm.dtype = 'bfloat16'
  config.reference.param_dtype = 'bfloat16'
  config.problems.kind = 'file'
  config.held_out.problems = 128
  config.test.update(problems=200, samples=8)
  config.evaluation.ns = (1, 2, 4, 8)


def small(config: ml_collections.ConfigDict) -> None:
  config.name += ' (small)'
  config.train.update(updates=80, evaluate_every=10)
  config.problems.update(train_problems=4096, test_problems=100)
  config.held_out.samples = 2
  config.test.samples = 4
  config.evaluation.ns = (1, 2, 4)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  if config.aot.model:
    config.aot.model.update(
      vocab_size=512, d_model=32, n_layers=2, n_heads=2, n_kv_heads=1
    )
    config.aot.model.update(head_dim=0, d_ff=64)
    config.mesh.model = 1
    config.sampling.max_tokens = 16
    config.train.minibatches = 1
  config.train.update(updates=4, problems=4, samples=4)
  config.train.update(evaluate_every=2, checkpoint_every=2)
  config.problems.update(train_problems=128, dev_problems=8, test_problems=8)
  config.held_out.update(problems=8, samples=2)
  config.test.update(problems=4, samples=4)
  config.evaluation.update(ns=(1, 2, 4), resamples=200)
  config.sampling.slots = 16


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """The config with the variants in `arg` applied in order."""
  config = base()
  variants = {
    'grpo': lambda c: c.advantage.update(estimator='grpo'),
    'rloo': lambda c: c.advantage.update(estimator='rloo'),
    'ppo': ppo,
    'outcome': outcome,
    'qwen2_5_math_7b': qwen2_5_math_7b,
    'exact': lambda c: c.prm.update(kind='exact'),
    'prime': prime,
    'small': small,
    'tiny': tiny,
  }
  for name in filter(None, arg.split(',')):
    if name not in variants:
      raise ValueError(
        f'unknown variant {name!r} of configs/rl_math.py: expected '
        f'{", ".join(variants)}'
      )
    variants[name](config)
  return config.lock()
