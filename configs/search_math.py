"""Search for answers: spend compute where a PRM says that it pays.

    python -m prm_jax.main --config configs/search_math.py:beam \
      --config.policy.kind=workdir --config.policy.workdir=/tmp/policy \
      --config.prm.kind=workdir --config.prm.path=/tmp/prm_math \
      --workdir /tmp/beam

Searches the test problems of configs/prm_math.py with the policy of
configs/policy_math.py and the PRM of configs/prm_math.py. WORKDIR/chains.jsonl
and WORKDIR/data have the chosen chains, trees.jsonl all proposed steps with
their scores, ledger.json the cost, results.json the accuracy with its interval,
report.html all of it. The same command resumes an interrupted job.

Without a policy and a PRM the job searches with the solver that wrote the
training chains and an exact PRM, which knows the solver's success rate after
every step. Accuracy on the 400 problems: majority 49%; best_of_n and
weighted_vote 91%; early_rejection 91% with 40% of best_of_n's tokens; beam
99.5% with as many tokens as best_of_n. Each takes 8 to 26 seconds on two cores.

Variants, comma separated, as in `configs/search_math.py:beam,gsm8k,tiny`:

    best_of_n        N chains; the one with the highest score
    majority         N chains; the most frequent answer, without a PRM
    weighted_vote    N chains; the answer with the highest sum of scores
    beam             N steps a round, M of each of the best N / M
    dvts             N / M beams that do not compete
    lookahead        beam by the score some steps further on
    rebase           N chains, shared out by the softmax of the scores
    mcts             a tree by PUCT
    refine           chains, each written anew from its weakest step on
    early_rejection  N chains; one that cannot become the best is stopped

    gsm8k  problems of gsm8k/test.jsonl below --config.problems.root or
           PRM_JAX_DATA; any file with problem or question, and answer, will do
    words  easier ones, of word_problems/mawps_multiarith.jsonl
    small  a minute or two, of arithmetic; its test problems are those of
           every other config's `small`
    tiny   a few problems: to see that everything runs

For models of published size, with --config.policy.workdir; before there is such
a policy, python -m prm_jax.aot says what the job needs:

    qwen2_5_math_7b  on the four chips of a TPU v5e host
    qwen2_5_72b      on the four chips of a TPU v5p host
"""

import ml_collections

from configs import common

# Methods of N samples: all but mcts.
SAMPLED = (
  *('best_of_n', 'majority', 'weighted_vote', 'beam', 'dvts', 'lookahead'),
  *('rebase', 'refine', 'early_rejection'),
)


def base() -> ml_collections.ConfigDict:
  return common.base(
    'search',
    name='Search',
    problems=dict(split='test', path='gsm8k/test.jsonl'),
    # A search continues chains: those kept on the device are not read again.
    policy=dict(sampling=dict(kept=256)),
  )


def use(config: ml_collections.ConfigDict, method: str) -> None:
  config.update(name=f'Search by {method}', method=method)


def gsm8k(config: ml_collections.ConfigDict) -> None:
  config.name += ' of GSM8K problems'
  config.problems.kind = 'file'
  config.policy.kind = config.prm.kind = 'workdir'
  # A chain kept for a model of SmolLM2's size and window takes megabytes.
  config.policy.sampling.kept = config.prm.rows = 64
  config.concurrent = 8


def words(config: ml_collections.ConfigDict) -> None:
  gsm8k(config)
  config.name = config.name.replace('GSM8K', 'word')
  config.problems.path = 'word_problems/mawps_multiarith.jsonl'


def small(config: ml_collections.ConfigDict) -> None:
  common.check_drawn(config, 'set problems.count instead')
  config.name += ' (small)'
  config.problems.update(train_problems=4096, test_problems=100)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  common.tiny_aot(config)
  config.problems.update(train_problems=128, dev_problems=8, test_problems=8)
  config.problems.count = 8
  for method in SAMPLED:
    config[method].samples = 4
  config.mcts.simulations = 8


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'best_of_n': lambda config: use(config, 'best_of_n'),
    'majority': lambda config: use(config, 'majority'),
    'weighted_vote': lambda config: use(config, 'weighted_vote'),
    'beam': lambda config: use(config, 'beam'),
    'dvts': lambda config: use(config, 'dvts'),
    'lookahead': lambda config: use(config, 'lookahead'),
    'rebase': lambda config: use(config, 'rebase'),
    'mcts': lambda config: use(config, 'mcts'),
    'refine': lambda config: use(config, 'refine'),
    'early_rejection': lambda config: use(config, 'early_rejection'),
    'gsm8k': gsm8k,
    'words': words,
    'small': small,
    'tiny': tiny,
    'qwen2_5_math_7b': common.opened('qwen2_5_math_7b'),
    'qwen2_5_72b': common.opened('qwen2_5_72b'),
  }
  return common.apply('configs/search_math.py', base(), variants, arg)
