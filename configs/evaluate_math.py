"""Evaluate a PRM of any kind: trained, published, at a server, or a critic.

    python -m prm_jax.main --config configs/evaluate_math.py \
      --config.prm.path=/tmp/prm_math --workdir /tmp/judged

Scores the dev and test chains of configs/prm_math.py and writes what the PRM
job writes at its end: results.json, step_scores.jsonl and report.html. Scores
are kept as they come, so the same command resumes an interrupted job. Other
chains: any data section of configs/prm_math.py. A model that was trained on
outcomes is judged by its last score with --config.targets.supervision=outcome.

Variants, comma separated, as in `configs/evaluate_math.py:critic,tiny`:

    critic  a critic of configs/verifier_math.py, prm.generative.path, which is
            asked once about each chain; 40 problems with 16 chains each
    logic   the chains of configs/prm_math.py:logic
    code    those of configs/prm_math.py:code
    words   word problems, as of configs/verifier_math.py:words
    human   ProcessBench, below --config.data.root or PRM_JAX_DATA; each
            set's threshold flags a step in half of its chains
    benchmarks  Mr-Ben and BIG-Bench-Mistake, a row for each subject
    small   a minute or two, in a domain; its test problems are those of
            every other config's `small`
    tiny    a few chains: to see that everything runs
"""

import ml_collections

from configs import common, prm_math


def base() -> ml_collections.ConfigDict:
  return common.base('evaluate', name='Evaluation')


def critic(config: ml_collections.ConfigDict) -> None:
  config.prm.kind = 'generative'
  config.prm.generative.ask = 'chain'
  # One critique is the most likely one; several are drawn, at temperature 1.
  config.prm.generative.sampling.temperature = 0.0
  if config.data.kind != 'words':
    config.prm.generative.sampling.max_tokens = 128
  config.data.test_samples = 16
  config.evaluation.ns = (1, 2, 4, 8, 16)
  config.evaluation.update(max_problems=40, max_dev_problems=40)


def words(config: ml_collections.ConfigDict) -> None:
  config.name = 'Evaluation on word problems'
  common.on_words(config)
  config.evaluation.update(best_of_n='words', ns=(1, 2, 4, 8))
  # The window of configs/verifier_math.py:words: nothing else cuts a critique.
  config.prm.generative.sampling.max_tokens = 640


def human(config: ml_collections.ConfigDict) -> None:
  config.name = 'Evaluation on human step labels'
  of = prm_math.get_config('human').data
  config.data.update({name: of[name] for name in ('kind', 'train')})
  config.data.decontaminate = of.decontaminate
  config.data.evaluations = of.evaluations
  config.evaluation.update(best_of_n='', wrong_share=0.5)
  config.evaluation.update(max_dev_problems=200, max_problems=200)


def benchmarks(config: ml_collections.ConfigDict) -> None:
  human(config)
  config.name = 'Evaluation beyond mathematics'
  config.data.evaluations = ml_collections.ConfigDict(prm_math.BENCHMARKS)


def small(config: ml_collections.ConfigDict) -> None:
  common.check_drawn(config, 'set evaluation.max_problems instead')
  config.name += ' (small)'
  config.data.update(train_problems=4096, test_problems=100, test_samples=16)
  config.evaluation.ns = (1, 2, 4, 8, 16)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  config.data.update(
    train_problems=128, dev_problems=8, dev_samples=4, test_problems=8
  )
  config.data.test_samples = 8
  config.evaluation.update(
    ns=(1, 2, 4, 8), resamples=200, max_problems=8, max_dev_problems=8
  )


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'critic': critic,
    'logic': lambda config: common.on_domain(config, 'logic'),
    'code': lambda config: common.on_domain(config, 'code'),
    'words': words,
    'human': human,
    'benchmarks': benchmarks,
    'small': small,
    'tiny': tiny,
  }
  return common.apply('configs/evaluate_math.py', base(), variants, arg)
