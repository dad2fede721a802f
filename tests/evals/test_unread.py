"""Chains longer than the model's window, whose last steps have no score."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.data.chains import Chain, StepLabel, first_error
from prm_jax.data.encoding import make_format
from prm_jax.data.targets import TargetConfig
from prm_jax.evals import localisation, prm, shown_chains, steps, suite
from prm_jax.evals.dev_metrics import dev_metrics
from prm_jax.inference.score import AGGREGATES
from prm_jax.inference.scorer import Scorer
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.report import chain_views, sections
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.train_state import make_params


def labelled(
  length: int, error: int = -1, name: str = 'p', outcome: bool | None = None
) -> Chain:
  """A chain that is right up to its first error, and wrong from there on."""
  values = [float(error < 0 or i < error) for i in range(length)]
  labels = tuple(map(StepLabel, values))
  return Chain(name, ('s',) * length, 'a', outcome, labels)


def chains_and_random_scores(window: int) -> tuple[list[Chain], list]:
  """Long chains have errors more often, as ProcessBench's do."""
  rng = np.random.default_rng(0)
  chains, scores = [], []
  for i in range(2000):
    length = int(rng.integers(1, 13))
    wrong = rng.random() < length / 14
    error = int(rng.integers(length)) if wrong else -1
    chains.append(labelled(length, error, f'p{i}', not wrong))
    scores.append(rng.random(min(length, window)))
  return chains, scores


def test_a_random_scorer_has_the_auc_of_a_coin_whatever_is_unread():
  chains, scores = chains_and_random_scores(window=5)
  found = suite.calibration_section(chains, scores, {}, 0, 100)
  wrong = sum(
    0 <= first_error(c.labels) < len(s)
    for c, s in zip(chains, scores, strict=True)
  )
  # Three standard errors of an area with so few wrong steps (Hanley, 1982).
  bound = 3 / np.sqrt(12 * wrong)
  assert abs(found['first_error_auc'] - 0.5) < bound
  # Nothing is counted that was not scored: all steps up to the first error.
  read = [
    min(len(s), first_error(c.labels) % len(c.steps) + 1)
    for c, s in zip(chains, scores, strict=True)
  ]
  assert found['count'] == sum(read)
  dev = dev_metrics(chains, scores, TargetConfig())
  assert abs(dev['eval/auc'] - 0.5) < bound
  # A uniform score against 0 or 1: the mean of (1 - u)^2.
  assert dev['eval/brier'] == pytest.approx(1 / 3, abs=0.02)
  lengths = np.array([len(c.steps) for c in chains])
  assert dev['eval/unread_steps'] == np.maximum(lengths - 5, 0).sum()


@pytest.mark.parametrize('how', ['constant', 'random'])
def test_such_a_scorer_of_chains_has_the_auc_of_a_coin_too(how):
  """Wrong chains are longer, so more of them are cut."""
  chains, scores = chains_and_random_scores(window=5)
  if how == 'constant':
    scores = [np.full(len(own), 0.5) for own in scores]
  whole = [len(c.steps) <= 5 for c in chains]
  read_by_all = [w and i % 3 > 0 for i, w in enumerate(whole)]
  methods = {
    'prm_last': prm.chain_scores(chains, scores, 'last'),
    # Another scorer whose window cut other chains.
    'orm': np.where(np.arange(len(chains)) % 3 > 0, 0.5, -np.inf),
  }
  found = suite.chain_ranking_section(chains, methods, 0, 100)
  wrong = sum(
    read and not chain.outcome
    for read, chain in zip(read_by_all, chains, strict=True)
  )
  bound = 0 if how == 'constant' else 3 / np.sqrt(12 * wrong)
  assert abs(found['prm_last']['auc'] - 0.5) <= bound
  assert found['orm']['auc'] == 0.5
  assert found['left_out'] == len(chains) - sum(read_by_all)
  # Without an outcome a chain is not ranked anyway.
  unchecked = dataclasses.replace(chains[0], outcome=None)
  again = suite.chain_ranking_section([unchecked, *chains[1:]], methods, 0, 100)
  assert again['left_out'] == found['left_out'] - 1  # which `orm` did not read


def test_chains_are_ranked_within_a_problem_without_those_that_were_cut():
  right, cut = labelled(2, outcome=True), labelled(3, 2, outcome=False)
  wrong = labelled(2, 1, outcome=False)
  scores = [np.array([0.5, 0.5])] * 3
  methods = {'prm_last': prm.chain_scores([right, cut, wrong], scores, 'last')}
  found = suite.chain_ranking_section([right, cut, wrong], methods, 0, 100)
  assert found['prm_last']['within_problem']['value'] == 0.5
  alone = {'prm_last': methods['prm_last'][:2]}
  found = suite.chain_ranking_section([right, cut], alone, 0, 100)
  assert found['prm_last']['auc'] is None
  assert found['prm_last']['within_problem']['problems'] == 0
  assert found['left_out'] == 1


def test_a_chain_that_was_cut_loses_to_every_chain_that_was_read():
  right = labelled(3, outcome=True)
  wrong = labelled(6, 5, outcome=False)
  scores = [np.array([0.2, 0.1, 0.3]), np.array([0.9, 0.9])]
  for how in AGGREGATES:
    found = prm.chain_scores([right, wrong], scores, how)
    assert found[0] > found[1] == -np.inf, how
  curve = suite.best_of_n_section(
    [right, wrong],
    {'prm': prm.chain_scores([right, wrong], scores, 'last')},
    np.array([0.3, 0.0]),
    [2],
    0,
    100,
  )
  assert curve['prm']['mean'] == [1.0]
  assert curve['weighted_vote']['mean'] == [1.0]


def test_outcome_targets_of_cut_chains_are_not_evaluated():
  chains = [labelled(2, outcome=True), labelled(2, 0, outcome=False)]
  outcome = TargetConfig('outcome')
  scores = [np.array([0.5, 0.8]), np.array([0.9])]
  found = dev_metrics(chains, scores, outcome)
  assert found == {
    'eval/brier': pytest.approx(0.04),
    'eval/unread_steps': 1.0,
  }
  with pytest.raises(UserError, match='no labelled step of 1 dev chains fits'):
    dev_metrics(chains[1:], scores[1:], outcome)


def test_a_score_that_is_nan_has_no_auc():
  """Its rank would be arbitrary."""
  chains = [labelled(2, 1)]
  found = dev_metrics(chains, [np.array([np.nan, 0.1])], TargetConfig())
  assert np.isnan(found['eval/auc']) and np.isnan(found['eval/brier'])


def test_a_verdict_needs_steps_that_were_read():
  """A cut chain is flagged in a step that was read, or else undecided."""
  chains = [
    labelled(4, 1),
    labelled(4, 3),
    labelled(4),
    labelled(2),
    labelled(4),
  ]
  scores = [[0.9, 0.1], [0.9, 0.9], [0.9, 0.9, 0.9], [0.9, 0.9], []]
  values, mask, read = suite.pad_scores(chains, [np.array(s) for s in scores])
  assert read.tolist() == [2, 2, 3, 2, 0]
  predicted = localisation.predict_first_error(values, mask, 0.5, read)
  undecided = localisation.UNDECIDED
  assert predicted.tolist() == [1, undecided, undecided, -1, undecided]
  first = np.array([first_error(c.labels) for c in chains])
  found = localisation.at_threshold(values, mask, first, 0.5, read)
  assert found['count_undecided'] == 3
  assert found['acc_error'] == 1 / 2  # the second's error was not read
  assert found['acc_correct'] == 1 / 3  # only what was read is right
  places = localisation.confusion_by_position(values, mask, first, 0.5, read)
  counted = [
    (p['right_kept'] + p['right_flagged'], p['wrong_kept'] + p['wrong_flagged'])
    for p in places
  ]
  assert counted == [(4, 0), (3, 1), (1, 0), (0, 0)]


@st.composite
def cut_chains(draw):
  """Chains of both kinds, ties and cuts: values, mask, read, labels."""
  score = st.integers(0, 4).map(lambda x: x / 4)
  rows = draw(
    st.lists(st.lists(score, min_size=1, max_size=4), min_size=2, max_size=6)
  )
  labels = [draw(st.integers(-1, len(row) - 1)) for row in rows]
  labels[0], labels[1] = -1, draw(st.integers(0, len(rows[1]) - 1))
  read = [draw(st.integers(0, len(row))) for row in rows]
  read[0] = max(read[0], 1)
  values, mask = steps.pad(rows)
  return values, mask, np.array(read), np.array(labels)


@given(cut_chains())
def test_the_threshold_of_cut_chains_is_the_exact_maximum(data):
  values, mask, read, labels = data
  threshold, f1 = localisation.choose_threshold(values, mask, labels, read)

  def at(t: float) -> float:
    found = localisation.at_threshold(values, mask, labels, t, read)
    return found['f1']

  assert at(threshold) == f1
  every = [at(t) for t in np.arange(-1, 11) / 8]
  assert max(every) == f1


def test_diagnostics_are_of_whole_chains():
  chains = [labelled(2, outcome=True), labelled(3, outcome=True)]
  chains.append(labelled(3, 2, outcome=True))
  scores = [np.array(s) for s in ([0.9, 0.8], [0.9, 0.7, 0.8], [0.9])]
  headline = prm.chain_scores(chains, scores, 'min')
  found = suite.diagnostics_section(chains, scores, headline, 0.5)
  assert found['minimum_at_last'] == {
    'share': 0.5,
    'chance': pytest.approx(5 / 12),
    'count': 2,
  }
  assert found['length_correlation'] == pytest.approx(-1)
  assert found['right_answer_wrong_process']['count_right_process'] == 2
  assert found['right_answer_wrong_process']['count_wrong_process'] == 0


def test_a_chain_without_an_outcome_hides_no_wrong_process():
  chains = [labelled(2, 1, outcome=True), labelled(2, outcome=True)]
  scores = [np.array([0.9, 0.1]), np.array([0.9, 0.8])]
  headline = prm.chain_scores(chains, scores, 'min')
  of_all = suite.diagnostics_section(chains, scores, headline, 0.5)
  assert of_all['right_answer_wrong_process']['found'] == 1
  unchecked = [labelled(2), labelled(2, 0), *chains]
  scores = [np.array([0.9, 0.2])] * 2 + scores
  headline = prm.chain_scores(unchecked, scores, 'min')
  found = suite.diagnostics_section(unchecked, scores, headline, 0.5)
  name = 'right_answer_wrong_process'
  assert found[name] == of_all[name]
  found = suite.diagnostics_section(
    unchecked[:2], scores[:2], headline[:2], 0.5
  )
  assert name not in found  # nothing is known


def test_prmbench_judges_no_step_beyond_the_window():
  chains = [labelled(3, 1), labelled(3, 1)]
  scores = [np.array([0.9, 0.1, 0.1]), np.array([0.9, 0.1])]
  found = suite.prmbench_section(chains, scores)['overall']
  assert (found['count_right'], found['count_wrong']) == (2, 3)


def test_a_real_scorer_gives_no_score_beyond_its_window():
  fmt = make_format('bytes', 24)
  model = TransformerConfig(fmt.tokenizer.vocab_size, 16, 1, 2, 1, 16)
  head = HeadConfig('logit')
  params = make_params(jax.random.key(0), model, head)
  mesh = make_mesh({'replica': 1, 'fsdp': -1, 'model': 1})
  scorer = Scorer(jax.tree.map(jnp.asarray, params), model, head, fmt, mesh)
  rng = np.random.default_rng(0)
  many = itertools.count()
  chains = [
    Chain(problem, tuple(f'step {next(many)}' for _ in range(length)))
    for problem in ('one', 'two two two two two two two two two')
    for length in rng.integers(1, 5, prm.WORTH_SHARING)
  ]
  chains += [Chain('three', ('is', 'a', 'good', 'long', 'step by step'))]
  scores = prm.score_chains(scorer, chains)
  read = [len(s) for s in scores]
  assert any(0 < r < len(c.steps) for r, c in zip(read, chains, strict=True))
  assert read[prm.WORTH_SHARING : -1] == [0] * prm.WORTH_SHARING
  for chain, found in zip(chains, scores, strict=True):
    if len(found):
      again = scorer.score(chain.problem, chain.steps[: len(found)])
      np.testing.assert_allclose(found, again, atol=1e-6)
  counts = suite.unread_section(chains, scores)
  assert counts['steps'] == sum(len(c.steps) for c in chains) - sum(read)
  assert counts['of_chains'] == len(chains)
  assert suite.unread_section(chains[:1], [np.ones(len(chains[0].steps))]) == {}


def test_the_report_shows_what_was_not_read(tmp_path):
  chain = labelled(3, 2)
  records = shown_chains.chains_to_show(
    [chain], [np.array([0.9])], np.array([0.9]), 1
  )
  path = tmp_path / 'chains.jsonl'
  path.write_text(json.dumps(records[0]) + '\n')
  ((read, extra),), _ = chain_views.read_chains(path)
  view = chain_views.chain_view(read, extra, 0.5)
  assert [step['score'] for step in view['steps']] == [
    '0.90',
    sections.NOTHING,
    sections.NOTHING,
  ]
  assert view['flagged'] == 'none flagged'
  texts = ['fine', 'so so', 'wrong']
  judged = chain_views.chain_view(read, extra | {'critiques': texts}, 0.5)
  assert [step['critique'] for step in judged['steps']] == texts
  whole = chain_views.chain_view(read, extra | {'critiques': ['all']}, 0.5)
  assert whole['critiques'] == ['all']
  own = chain_views.chain_view(read, extra | {'threshold': 0.95}, 0.5)
  assert own['flagged'] == 'flagged at step 1'
  counts = suite.unread_section([chain], [np.array([0.9])])
  ((name, text),) = sections.unread({'math': counts})
  assert name == 'math'
  assert text.startswith('2 of 3 steps, in 1 of 1 chains, lie beyond')
