"""The traps of docs/evaluation.md: closed forms, small pools, its lines."""

import json

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.evals import calibration
from tests.shared.command_line import ROOT
from tests.shared.real_data import shared

pytest.importorskip('matplotlib', reason="needs 'prm_jax[experiments]'")

from experiments.evaluation_traps import choosing, facts, judging, run
from prm_jax.evals.trivial import scores as feature

FOLDER = ROOT / 'experiments/evaluation_traps'
DOCUMENT = json.loads((FOLDER / 'results.json').read_text())
PAGE = ROOT / 'docs/evaluation.md'


def solution(problem, steps, right, model='a'):
  return Chain(
    problem,
    tuple(steps),
    answer=str(right),
    outcome=right,
    meta={'generator': model},
  )


def test_the_page_says_what_was_measured():
  text = PAGE.read_text()
  assert run.fill_page(text, DOCUMENT) == text
  for name in DOCUMENT['traps']:
    assert f'evaluation_traps/{name}.svg' in text


def test_the_comparison_is_made_of_the_traps():
  assert DOCUMENT['named'] == facts.named(DOCUMENT['traps'])


def test_figures_are_small_and_there():
  for name in DOCUMENT['traps']:
    assert (FOLDER / f'{name}.svg').stat().st_size < 60_000


def test_the_seed_that_chose_settings_is_not_reported():
  assert 0 not in DOCUMENT['seeds']
  assert set(DOCUMENT['traps']['calibration']) == set(
    map(str, DOCUMENT['seeds'])
  )


def test_a_pool_knows_equal_texts():
  pool = choosing.make_pool(
    [
      solution('p', ['x'], True),
      solution('p', ['x'], True),
      solution('p', ['x', 'y'], False),
      solution('q', ['x'], False),
      solution('q', ['z'], True),
      solution('q', ['w'], True),
    ]
  )
  assert pool.right.tolist() == [[True, True, False], [False, True, True]]
  assert [len(set(row)) for row in pool.texts] == [2, 3]
  # Equal texts of different problems are different texts.
  assert not set(pool.texts[0]) & set(pool.texts[1])


def test_choices_by_form_follow_the_cut():
  """One answer in a line of two sentences, one in two lines, with no end."""
  pool = choosing.make_pool(
    [
      solution('p', ['So 3. And 4.'], True),
      solution('p', ['three and', 'four'], False),
    ]
  )
  lines = choosing._by_form(pool, 'given')
  assert lines['fewest steps']['mean'] == 1.0
  assert lines['longest longest step']['mean'] == 1.0
  assert lines['random score for each text']['mean'] == 0.5
  assert lines['fewest steps']['over_null']['mean'] == 0.5
  # Both have two sentences now, and a tie is broken at random.
  sentences = choosing._by_form(pool, 'sentences')
  assert sentences['fewest steps']['mean'] == 0.5
  assert sentences['shortest longest step']['mean'] == 1.0


def test_committed_nulls_are_those_of_the_chains():
  found = DOCUMENT['traps']['null']
  seed = next(iter(found['seeds']))
  again = choosing.nulls.random_per_text_curve(
    *choosing.arithmetic_pool(400, found['n'][-1], int(seed))[1:], found['n']
  )
  committed = found['seeds'][seed]['random_per_text']['mean']
  np.testing.assert_allclose(again.mean(0), committed, atol=1e-9)
  # Two samples are as good as one: either text is picked by chance.
  assert committed[0] == pytest.approx(committed[1])
  assert committed == sorted(committed, reverse=True)


def test_numbers_of_human_labels_are_those_it_has_now():
  found = judging.read_committed('human_labels')['results']['calibration']
  for name in ('gsm8k', 'math'):
    shown = DOCUMENT['traps']['length'][name]['auc']['PRM']['value']
    assert shown == found[name]['first_error_auc'], 'measure the traps again'


def test_intervals_over_chains_are_too_narrow_by_the_design_effect():
  """Kish: variance grows by 1 + (n - 1) rho for n samples of a problem."""
  found = choosing.measure_intervals()
  assert found['over'] == DOCUMENT['traps']['intervals']['over']
  chains, problems = found['over']['chains'], found['over']['problems']
  assert 0.93 < problems['covered'] < 0.97
  assert chains['covered'] < 0.6
  domain = choosing.arithmetic.ArithmeticConfig()
  drawn = choosing.arithmetic.sample_problems(domain, 20_000, 8)
  solver = choosing.arithmetic.make_solver(domain)
  values = choosing.arithmetic.prefix_values(solver, drawn, domain.modulus)
  of_problem = values[np.arange(len(values)), 0, drawn.start]
  mean = of_problem.mean()
  rho = of_problem.var() / (mean * (1 - mean))
  effect = (1 + (found['samples'] - 1) * rho) ** 0.5
  ratio = problems['half_width'] / chains['half_width']
  assert ratio == pytest.approx(effect, rel=0.03)


def labelled_steps(lengths, rights):
  chains = []
  for own, right in zip(lengths, rights, strict=True):
    steps = tuple('x' * n for n in own)
    labels = tuple(StepLabel(value) for value in right)
    chains.append(Chain('p', steps, labels=labels))
  return judging.labelled(chains)


def test_a_regression_on_one_feature_ranks_as_the_feature():
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, 40, (60, 3)).tolist()
  rights = [[float(rng.random() * 40 > n) for n in own] for own in lengths]
  data = labelled_steps(lengths, rights)
  scorer = judging.fit(data, ['length'])
  right = data.labels[data.judged] >= 0.5
  ours = scorer.scores(data.chains)[data.judged]
  theirs = -feature(data.chains, 'length')[data.judged]
  assert calibration.auroc(ours, right) == calibration.auroc(theirs, right)
  # At the maximum likelihood the mean score is the share of right steps.
  assert ours.mean() == pytest.approx(right.mean(), abs=1e-4)


def test_unread_steps_flatter_a_reader_that_reads_nothing():
  """Every right chain is found, however little was read."""
  chain = Chain('p', ('one', 'two'), labels=(StepLabel(1.0),) * 2)
  assert judging.steps_read(chain, 1) == 0
  # <bos> p <end> one <step> two <step>: 3 + 4 + 4 tokens.
  assert judging.steps_read(chain, 10) == 1
  assert judging.steps_read(chain, 11) == 2
  for name in ('gsm8k', 'math'):
    for row in DOCUMENT['traps']['unread'][name]:
      flattered, honest = row['unread_is_right'], row['without_verdict']
      assert flattered['acc_correct'] == 1.0
      assert flattered['acc_error'] == honest['acc_error']
      assert honest['f1'] <= flattered['f1']


def test_bins_without_a_right_step_are_found():
  bins = [
    {'score': 0.01, 'accuracy': 0.0, 'count': 50},
    {'score': 0.1, 'accuracy': 0.0, 'count': 3},
    {'score': 0.7, 'accuracy': 0.0, 'count': 2},
    {'score': 0.9, 'accuracy': 0.9, 'count': 10},
  ]
  assert judging._never_right(bins) == {
    'bins': 2,
    'lowest': 0.1,
    'highest': 0.7,
    'steps': 5,
  }


def test_the_pool_and_human_labels_give_the_committed_numbers():
  traps = DOCUMENT['traps']
  pool = shared('best_of_n/gsm8k_test_pool.jsonl')
  found = choosing.measure_segmentation(pool.parents[1])
  assert found['one_line'] == traps['segmentation']['one_line']
  cut = found['cut']['at lines']
  assert round(100 * cut['fewest steps']['mean'], 1) == 51.3
  assert round(100 * cut['shortest longest step']['mean'], 1) == 36.1
  for name in ('gsm8k', 'math'):
    chains, _ = choosing.read_chains(
      shared(f'processbench/{name}.json'), 'processbench'
    )
    part = judging.labelled(chains)
    values = -feature(part.chains, 'length')[part.judged]
    auc = calibration.auroc(values, part.labels[part.judged] >= 0.5)
    assert auc == pytest.approx(traps['length'][name]['auc']['length']['value'])
