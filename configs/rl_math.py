"""Train a policy with per-step rewards.

    python -m prm_jax.main --config configs/rl_math.py:grpo \
      --config.policy.workdir=/tmp/policy --config.prm.path=/tmp/prm_math \
      --workdir /tmp/rl

Improves the policy that configs/policy_math.py trained. It samples groups of
chains for the training problems; the PRM of configs/prm_math.py scores every
step, and the verifier grades the end. On held-out problems the run compares
verified accuracy with the PRM's view: where the PRM's view rises and accuracy
falls, it reports that the reward is hacked, and keeps the chains that show it.
WORKDIR is then a policy like any other: configs/sample_math.py, search_math.py
and label_math.py take it.

50% of the policy's chains for test problems are right before, and 96% after 400
updates of 64 chains. That takes ten minutes at most on two CPU cores.

Variants, comma separated, as in `configs/rl_math.py:rloo,tiny`:

    grpo     advantages relative to the group's mean and deviation
    rloo     advantages relative to the mean of the others
    ppo      a value head (GAE); scores as a potential
    outcome  the verifier's word alone, without a PRM
    prime    an implicit PRM, which starts as the policy and learns from every
             batch's outcomes (PRIME), with the advantages of rloo
    exact    exact step labels of the arithmetic domain in place of a PRM
    small    a minute or two, of arithmetic; its test problems are those of
             every other config's `small`
    tiny     seconds instead of minutes: to see that everything runs

With a policy of configs/policy_math.py:qwen2_5_math_7b:

    qwen2_5_math_7b  on GSM8K, on TPU v5e:16x16; python -m prm_jax.aot says what
                     it needs before there is a policy

With a policy of configs/policy_math.py:smollm2,words:

    words    adapters of rank 16 learn word problems; tested on templates never
             seen
"""

import ml_collections

from configs import common


def base() -> ml_collections.ConfigDict:
  return common.base(
    'rl',
    name='RL with step rewards on modular arithmetic',
    sampling=dict(max_tokens=48),
    # With more weight the policy learns faster, also what the PRM overlooks.
    reward=dict(weight=0.5, outcome_weight=1.0),
    loss=dict(kl_weight=0.005),
    optim=dict(lr=2e-4, warmup=5, weight_decay=0.0),
    train=dict(problems=8, evaluate_every=20, checkpoint_every=20),
  )


def grpo(config: ml_collections.ConfigDict) -> None:
  config.advantage.estimator = 'grpo'


def rloo(config: ml_collections.ConfigDict) -> None:
  config.advantage.estimator = 'rloo'


def ppo(config: ml_collections.ConfigDict) -> None:
  config.advantage.estimator = 'gae'
  # Its returns have no group as baseline: where most steps are wrong, raw
  # scores pay best for ending at once. A potential does not change what is
  # best.
  if config.reward.form == 'raw':
    # It does so where the value head is exact; with much weight its errors
    # leave a reward for what the PRM overlooks.
    config.reward.update(form='potential', weight=0.15)


def outcome(config: ml_collections.ConfigDict) -> None:
  config.prm.kind = 'none'
  config.reward.update(form='outcome', weight=0.0)


def prime(config: ml_collections.ConfigDict) -> None:
  config.prm.kind = 'implicit'
  config.reward.update(weight=1.0, centre=0.0)  # the rewards are log-ratios
  config.advantage.update(estimator='rloo', process='to_go', baseline='group')


def exact(config: ml_collections.ConfigDict) -> None:
  config.prm.kind = 'exact'


def qwen2_5_math_7b(config: ml_collections.ConfigDict) -> None:
  config.name = 'RL with step rewards on GSM8K'
  common.compile_for(config, 'v5e:16x16', common.QWEN2_5_7B)
  config.mesh.model = 4
  config.model.update(
    dtype='auto', param_dtype='float32', remat='full', scan_unroll=1
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


def words(config: ml_collections.ConfigDict) -> None:
  config.name = 'RL with step rewards on word problems'
  common.learn_words_by_rl(config)
  config.sampling.max_tokens = common.WORDS_TOKENS
  config.held_out.samples = 2
  config.test.samples = 4
  config.evaluation.ns = (1, 2, 4)


def small(config: ml_collections.ConfigDict) -> None:
  common.check_drawn(config, 'set train.updates instead')
  config.name += ' (small)'
  config.train.update(updates=80, evaluate_every=10)
  config.problems.update(train_problems=4096, test_problems=100)
  config.held_out.samples = 2
  config.test.samples = 4
  config.evaluation.ns = (1, 2, 4)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  common.tiny_aot(config)
  if config.aot.topology:
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
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'grpo': grpo,
    'rloo': rloo,
    'ppo': ppo,
    'outcome': outcome,
    'qwen2_5_math_7b': qwen2_5_math_7b,
    'words': words,
    'exact': exact,
    'prime': prime,
    'small': small,
    'tiny': tiny,
  }
  return common.apply('configs/rl_math.py', base(), variants, arg)
