"""Search for answers: compute where a PRM says it pays.

    python -m prm_jax.main --config configs/search_math.py:beam \
      --config.policy.kind=workdir --config.policy.workdir=/tmp/policy \
      --config.prm.kind=workdir --config.prm.path=/tmp/prm_math \
      --workdir /tmp/beam

Searches the test problems of configs/prm_math.py with the policy that
configs/policy_math.py trained and the PRM of configs/prm_math.py. WORKDIR/
chains.jsonl and WORKDIR/data have the chosen chains, trees.jsonl all steps that
were proposed, with their scores, ledger.json what it took, results.json the
accuracy with its interval, report.html all of it. The same command goes on
where an earlier one stopped.

Without a policy and a PRM the solver that wrote the training chains is asked,
and a PRM that knows how often it ends right from where. Of the 400 problems
majority finds 49% right; best_of_n and weighted_vote 91%; early_rejection the
same with half the tokens; beam 99.5% with as many. Each takes 8 to 26 seconds
on two cores.

Variants, comma separated, as in `configs/search_math.py:beam,gsm8k,tiny`:

    best_of_n        N chains; the one that the PRM finds the best
    majority         N chains; the answer that most of them give, without a PRM
    weighted_vote    N chains; the answer with the most score
    beam             N steps a round, M of each of the best N / M
    dvts             N / M beams that do not compete
    lookahead        beam by the score some steps further on
    rebase           N chains at once, shared out by the softmax of the scores
    mcts             a tree by PUCT
    refine           chains, each written anew from its weakest step on
    early_rejection  N chains; one that cannot be the best is not written on

    gsm8k  problems of gsm8k/test.jsonl below --config.problems.root or
           PRM_JAX_DATA; any file with problem or question, and answer, will do
    words  easier ones, of word_problems/mawps_multiarith.jsonl
    small  a minute or two, of arithmetic; its test problems are those of
           every other config of this name
    tiny   a few problems: to see that everything runs
"""

import ml_collections

# Each method's own values, as config.NAME.
METHODS = dict(
  best_of_n=dict(samples=16, round_size=0),
  majority=dict(samples=16, round_size=0),
  weighted_vote=dict(samples=16, round_size=0),
  beam=dict(samples=16, width=4),
  dvts=dict(samples=16, width=4),
  lookahead=dict(samples=16, width=4, steps=1),
  rebase=dict(samples=16, temperature=0.2),
  mcts=dict(
    simulations=64,
    width=4,
    c_puct=0.125,
    leaves=4,
    prior='policy',
    rollouts=0,
  ),
  refine=dict(samples=4, rounds=4),
  early_rejection=dict(samples=16, width=2),
)


def base() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.task = 'search'
  config.name = 'Search'
  config.seed = 0
  config.cpu_devices = 0  # 0: whatever JAX finds
  config.method = 'best_of_n'
  config.search = dict(aggregate='min', max_steps=64, max_repeats=8)
  # Of a problem; the first that is reached ends it. Unset: no limit. What a
  # cache holds takes no FLOPs: like seconds they differ from run to run.
  unset = ml_collections.config_dict.placeholder
  config.budget = dict(
    samples=unset(int),
    tokens=unset(int),
    flops=unset(float),
    seconds=unset(float),
  )
  config.update(METHODS)
  config.problems = dict(
    kind='arithmetic',
    split='test',
    first=0,
    count=0,  # 0: all
    root='',  # of files; '': the environment variable PRM_JAX_DATA
    path='gsm8k/test.jsonl',
    # As in configs/prm_math.py: equal numbers give its dev and test problems.
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
  config.policy = dict(
    kind='solver',  # or workdir; endpoint, a server; recorded, of a sampling
    solver=config.problems.arithmetic.to_dict(),
    workdir='',  # of a policy that was trained; of the sampling job
    sampling=dict(
      temperature=1.0,
      top_k=0,
      top_p=1.0,
      min_p=0.0,
      slots=64,
      max_tokens=256,
      kept=256,  # chains whose keys and values stay on the device
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
  config.prm = dict(
    kind='exact',  # of the arithmetic domain; or workdir, or none
    path='',  # of a trained PRM, or a published one: a folder, hf://owner/name
    style='',  # of a published one that does not tell
    rows=1024,  # chains whose keys and values stay on the device
    exact='value',  # that the solver ends right; or steps: that they are right
  )
  config.go_on_from = ''  # the workdir of a search whose trees grow further
  config.trees = 0  # problems whose trees are written, the first; 0: all
  config.concurrent = 64  # problems that a process has in flight
  config.price = dict(tokens=0.0, prompt_tokens=0.0)  # US dollars a million
  return config


def use(config: ml_collections.ConfigDict, method: str) -> None:
  config.method = method
  config.name = f'Search by {method}'


def gsm8k(config: ml_collections.ConfigDict) -> None:
  config.name += ' of GSM8K problems'
  config.problems.kind = 'file'
  config.policy.kind = config.prm.kind = 'workdir'
  # A row of the size of SmolLM2 and its window takes megabytes.
  config.policy.sampling.kept = config.prm.rows = 64
  config.concurrent = 8


def words(config: ml_collections.ConfigDict) -> None:
  gsm8k(config)
  config.name = config.name.replace('GSM8K', 'word')
  config.problems.path = 'word_problems/mawps_multiarith.jsonl'


def small(config: ml_collections.ConfigDict) -> None:
  config.name += ' (small)'
  config.problems.update(train_problems=4096, test_problems=100)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  config.problems.update(train_problems=128, dev_problems=8, test_problems=8)
  config.problems.count = 8
  for name in METHODS:
    if 'samples' in config[name]:
      config[name].samples = 4
  config.mcts.simulations = 8


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """The config with the variants in `arg` applied in order."""
  config = base()
  variants = {
    'best_of_n': lambda c: use(c, 'best_of_n'),
    'majority': lambda c: use(c, 'majority'),
    'weighted_vote': lambda c: use(c, 'weighted_vote'),
    'beam': lambda c: use(c, 'beam'),
    'dvts': lambda c: use(c, 'dvts'),
    'lookahead': lambda c: use(c, 'lookahead'),
    'rebase': lambda c: use(c, 'rebase'),
    'mcts': lambda c: use(c, 'mcts'),
    'refine': lambda c: use(c, 'refine'),
    'early_rejection': lambda c: use(c, 'early_rejection'),
    'gsm8k': gsm8k,
    'words': words,
    'small': small,
    'tiny': tiny,
  }
  for name in filter(None, arg.split(',')):
    if name not in variants:
      raise ValueError(
        f'unknown variant {name!r} of configs/search_math.py: expected '
        f'{", ".join(variants)}'
      )
    variants[name](config)
  return config.lock()
