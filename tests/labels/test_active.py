"""Active selection by hand, and with a real Scorer."""

import collections
import dataclasses

import numpy as np
import pytest

from prm_jax.data.chains import Chain
from prm_jax.inference.score import aggregate
from prm_jax.labels.active import ActiveConfig, chain_scores, select, take
from prm_jax.runtime.errors import UserError
from tests.shared.tiny_trees import make_scorer


def written_scores(chains):
  """The score of a step is the number at its end."""
  return [
    np.array([float(step.split()[-1]) for step in chain.steps], np.float32)
    for chain in chains
  ]


def sample(problem, outcome, *scores):
  steps = tuple(f'so {score}' for score in scores)
  return Chain(problem, steps, '1', outcome, meta={'id': f'{problem}{scores}'})


# By product the chains of p have 0.9, 0.8, 0.72, 0.5, 0.3, 0.2 and 0.1.
CHAINS = [
  sample('p', True, 0.9),
  sample('p', False, 0.1),
  sample('q', True, 0.4),
  sample('p', False, 0.9, 0.8),
  sample('p', False, 0.5),
  sample('p', True, 0.8),
  sample('q', False, 0.2),
  sample('p', False, 0.3),
  sample('p', False, 0.2),
]


def chosen(config, chains=CHAINS):
  selection, report = select(chains, config, written_scores(chains))
  order = [CHAINS.index(chains[i]) for i in selection.indices]
  return order, selection, report


def plain(chain):
  return Chain(
    chain.problem,
    chain.steps,
    chain.answer,
    chain.outcome,
    meta={'id': chain.meta['id']},
  )


def test_wrong_answers_come_first_then_the_remaining_chains():
  config = ActiveConfig(budget=5)
  order, selection, report = chosen(config)
  selected = take(CHAINS, selection.indices, config)
  assert [plain(c) for c in selected] == [CHAINS[i] for i in order]
  # p: four wrong ones (0.72, 0.5, 0.3, 0.2), then the best remaining one.
  assert order == [3, 4, 7, 8, 0, 6, 2]
  assert [c.meta['active']['rank'] for c in selected] == [0, 1, 2, 3, 4, 0, 1]
  assert {c.meta['active']['method'] for c in selected} == {'active'}
  np.testing.assert_allclose(
    np.exp(selection.scores), [0.72, 0.5, 0.3, 0.2, 0.9, 0.2, 0.4], rtol=1e-6
  )
  assert report == (2, 9, 7, 5, 1)


@pytest.mark.parametrize(
  ('config', 'order'),
  [
    ({'budget': 1}, [3, 6]),
    ({'budget': 2}, [3, 4, 6, 2]),  # 1.6 of 2 is 2
    ({'budget': 3}, [3, 4, 0, 6, 2]),  # 2.4 of 3 is 2
    ({'budget': 3, 'wrong_share': 0.0}, [0, 5, 3, 2, 6]),
    ({'budget': 2, 'aggregate': 'sum'}, [3, 4, 6, 2]),
    ({'budget': 1, 'aggregate': 'max', 'wrong_share': 0}, [0, 2]),
    ({'budget': 9}, [3, 4, 7, 8, 1, 0, 5, 6, 2]),
  ],
)
def test_selection_by_hand(config, order):
  assert chosen(ActiveConfig(**config))[0] == order


def test_copies_come_after_all_others():
  copied = [CHAINS[3], CHAINS[3], CHAINS[0], *CHAINS]
  assert chosen(ActiveConfig(budget=5), copied)[0][:5] == [3, 4, 7, 8, 0]
  # A copy does not fill a place of wrong answers either.
  few = [CHAINS[3], CHAINS[3], CHAINS[0]]
  assert chosen(ActiveConfig(budget=2), few)[0] == [3, 0]


def test_places_without_wrong_answers_go_to_right_ones():
  chains = [c for c in CHAINS if c.outcome]
  order, _, report = chosen(ActiveConfig(budget=2), chains)
  assert order == [0, 5, 2]
  assert report == (2, 3, 3, 0, 1)


def test_a_chain_that_was_cut_off_fills_no_place_of_wrong_answers():
  cut = dataclasses.replace(
    CHAINS[3], answer=None, meta={'id': 'cut', 'finished': False}
  )
  chains = [cut, *CHAINS[:3], *CHAINS[4:]]
  config = ActiveConfig(budget=3)
  selection, report = select(chains, config, written_scores(chains))
  # p: two of 3 places go to wrong answers (0.5, 0.3), one to the best chain.
  assert selection.indices == [4, 7, 1, 6, 3]
  assert report.wrong == 3
  config = ActiveConfig(budget=9)
  selection, report = select(chains, config, written_scores(chains))
  # It is among the remaining chains, with 0.72.
  assert selection.indices == [4, 7, 8, 2, 1, 5, 0, 6, 3]
  assert report.wrong == 5


def test_the_random_baseline_has_the_same_budget():
  counts = collections.Counter()
  for seed in range(400):
    config = ActiveConfig(budget=3, method='random', seed=seed)
    (order, scores), report = select(CHAINS, config, None)
    assert select(CHAINS, config, None)[0] == (order, scores)
    assert report[:3] == (2, 9, 5)
    assert len(set(order)) == 5
    assert not scores
    counts.update(order[:3])
  # Each of the seven of p is expected 171 times; four deviations are 40.
  assert set(counts) == {0, 1, 3, 4, 5, 7, 8}
  assert all(abs(n - 1200 / 7) < 40 for n in counts.values())


def test_ties_go_to_the_first():
  same = [sample('p', False, 0.5), sample('p', False, 0.5, 1.0)]
  selection, _ = select(same, ActiveConfig(budget=1), written_scores(same))
  assert selection.indices == [0]


def test_chain_scores_equal_the_scorers_own():
  scorer = make_scorer()
  rng = np.random.default_rng(0)
  chains = [
    sample(f'problem {n % 4}', bool(n % 3), *rng.integers(100, size=1 + n % 5))
    for n in range(14)
  ]
  config = ActiveConfig(budget=2, aggregate='mean')
  step_scores = scorer.score_many([(c.problem, c.steps) for c in chains])
  scores = chain_scores(chains, config, step_scores)
  for chain, found in zip(chains, scores, strict=True):
    steps = scorer.score(chain.problem, chain.steps)
    alone = aggregate(steps, np.ones(len(steps), bool), 'mean')
    np.testing.assert_allclose(found, alone, atol=1e-5)
  selection, report = select(chains, config, step_scores)
  selected_wrong = sum(not chains[i].outcome for i in selection.indices)
  assert report == (4, 14, 8, selected_wrong, 0)
  for problem in range(4):
    wrong = [
      n for n, c in enumerate(chains) if n % 4 == problem and not c.outcome
    ]
    best = max(wrong, key=lambda n: scores[n])
    assert best in selection.indices


def test_a_chain_whose_score_overflows_is_named():
  scores = written_scores(CHAINS)
  scores[3][1] = scores[7][0] = np.nan
  with pytest.raises(UserError, match=r"2 of 9 .* them 'p\(0.9, 0.8\)'"):
    select(CHAINS, ActiveConfig(), scores)


def test_selection_needs_chains_with_outcomes_and_a_prm():
  with pytest.raises(UserError, match=r"chain 'p\(0.5,\)' has no outcome"):
    select([sample('p', None, 0.5)], ActiveConfig(), None)
  with pytest.raises(UserError, match="method='active' needs a trained PRM"):
    select(CHAINS, ActiveConfig(), None)
  with pytest.raises(UserError, match='no chains to select from'):
    select([], ActiveConfig(), [])


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'budget': 0}, r'^budget=0: expected >= 1'),
    ({'batch_size': 0.5}, r'^batch_size=0.5: expected a whole'),
    ({'method': 'best'}, r"^method='best': expected one of active, r"),
    ({'aggregate': 'median'}, r"^aggregate='median': expected one of"),
    ({'wrong_share': 2}, r'^wrong_share=2: expected a number in'),
    ({'seed': -1}, r'^seed=-1: expected >= 0'),
  ],
)
def test_configs_check_themselves(fields, message):
  with pytest.raises(UserError, match=message):
    ActiveConfig(**fields)
