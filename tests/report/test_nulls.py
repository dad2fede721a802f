"""The page shows what a scorer without knowledge reaches, and what was read."""

import copy
import json

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.evals import suite
from prm_jax.report import write_report
from prm_jax.runtime.errors import UserError
from tests.report.workdir import DOCUMENT, parse, table, write

STEPS = 3


def make_chains(seed=0, problems=12, samples=4):
  """Chains with labels and outcomes, and scores that know half of it."""
  rng = np.random.default_rng(seed)
  chains, scores = [], []
  for problem in range(problems):
    for _ in range(samples):
      labels = rng.random(STEPS) < 0.7
      texts = tuple(f'{a} = {rng.integers(3)}' for a in range(STEPS))
      chains.append(
        Chain(
          f'problem {problem}',
          texts,
          # The text decides, as equal texts have equal outcomes.
          answer=texts[-1],
          outcome=texts[-1].endswith('0'),
          labels=tuple(StepLabel(float(right)) for right in labels),
        )
      )
      scores.append(np.clip(0.5 * labels + 0.5 * rng.random(STEPS), 0, 1))
  return chains, scores


@pytest.fixture(scope='module')
def results():
  """What a PRM's evaluation writes, by the code that writes it."""
  chains, scores = make_chains()
  lowest = np.array([each.min() for each in scores])
  methods = {'prm_min': lowest, 'orm': np.array([s[-1] for s in scores])}
  chosen = suite.choose_on_dev(*make_chains(seed=1))
  found = {
    'best_of_n': suite.best_of_n_section(
      chains, methods, lowest, [1, 2, 4], 0, 100
    ),
    'ranking': suite.chain_ranking_section(chains, methods, 0, 100),
    'localisation': {
      'toy': suite.localisation_section(chains, scores, chosen, 0, 100)
    },
    'calibration': {
      'toy': suite.calibration_section(chains, scores, chosen.rules, 0, 100)
    },
    'diagnostics': {
      'toy': suite.diagnostics_section(chains, scores, lowest, 0.5)
    },
  }
  return json.loads(json.dumps(found))


def page_of(tmp_path, results, **config):
  if config:
    (tmp_path / 'config.json').write_text(json.dumps(config))
  return parse(write_report(write(tmp_path, results)))


def shown(mean, bounds, form):
  low, high = bounds
  return f'{form(mean)} [{form(low)}, {form(high)}]'


def percent(value):
  return f'{100 * value:.1f}'


def points(value):
  return f'{100 * value:+.1f}'


def decimals(value):
  return f'{value:.3f}'


def test_the_null_of_best_of_n_is_a_row_a_line_and_a_table_of_leads(
  tmp_path, results
):
  section = page_of(tmp_path, results).by_id('best-of-n')
  curves = results['best_of_n']
  accuracy, leads = section.all('table')
  rows = {row[0]: row[1:] for row in table(accuracy)}
  null = curves['random_per_text']
  assert rows['random score for each text'] == [
    shown(*each, percent)
    for each in zip(null['mean'], null['ci95'], strict=True)
  ]
  assert len(section.all('svg')[0].all('path', 'null')) == 2  # and its leader
  head, *rows = table(leads)
  # One sample is the same for every method.
  assert head == ['picked by', 'N = 2', 'N = 4']
  over = curves['prm_min']['over_null']
  assert rows[0] == [
    'PRM (min)',
    *(
      shown(*each, points)
      for each in zip(over['mean'][1:], over['ci95'][1:], strict=True)
    ),
  ]
  names = [row[0] for row in rows]
  assert names == ['PRM (min)', 'ORM', 'majority vote', 'weighted vote']


def test_the_verdict_compares_with_the_null(tmp_path, results):
  said = page_of(tmp_path, results).all('div', 'verdict')[0].text
  curves = results['best_of_n']
  null = percent(curves['random_per_text']['mean'][-1])
  assert f'A random score for each text gives {null}% [' in said
  lead = points(curves['prm_min']['over_null']['mean'][-1])
  assert f'Over that null it leads by {lead} points [' in said
  assert 'A random pick' not in said
  calibration = results['calibration']['toy']
  assert f'log loss {calibration["log_loss"]:.3f} (' in said
  features = calibration['baselines']
  assert features['place']['auc'] == max(x['auc'] for x in features.values())
  assert f'(place in the chain: {features["place"]["auc"]:.3f})' in said
  unsure = calibration['unsure']
  assert (
    f'Scores from 0.05 to 0.95 are off by {percent(unsure["ece"])} points on '
    f'toy ({percent(unsure["share"])}% of its steps)'
  ) in said
  assert 'expected calibration error' not in said


def test_a_lead_that_may_be_none_is_said(tmp_path, results):
  results = copy.deepcopy(results)
  over = results['best_of_n']['prm_min']['over_null']
  over['mean'][-1], over['ci95'][-1] = 0.01, [-0.02, 0.03]
  said = page_of(tmp_path, results).all('div', 'verdict')[0].text
  assert '+1.0 points [-2.0, +3.0] (0 is in the interval)' in said
  localised = results['localisation']['toy']
  localised['f1'], localised['ci95'] = 0.01, [0.0, 0.02]
  said = page_of(tmp_path, results).all('div', 'verdict')[0].text
  assert 'That is below the baseline on toy.' in said
  localised['ci95'] = [0.0, 1.0]
  said = page_of(tmp_path, results).all('div', 'verdict')[0].text
  assert 'That is not clearly above the baseline on toy.' in said


def test_the_constant_loss_is_the_entropy_of_the_labels(tmp_path, results):
  section = page_of(tmp_path, results).by_id('calibration')
  rows = dict(
    row for found in section.all('table', 'plain') for row in table(found)
  )
  chains, _ = make_chains()
  labels, known, _ = suite.label_arrays(chains)
  kept = known & (np.cumsum(1 - labels, 1) - (1 - labels) == 0)
  right = labels[kept].mean()
  entropy = -right * np.log(right) - (1 - right) * np.log(1 - right)
  name = 'log loss of always saying the share of right ones'
  assert rows[name] == f'{entropy:.3f}'


def test_rankings_stand_over_and_within_problems(tmp_path, results):
  page = page_of(tmp_path, results)
  chains = table(page.by_id('ranking').all('table')[0])
  texts = f'{results["ranking"]["distinct_texts"]:.1f} different chains'
  assert texts in page.by_id('ranking').text
  for row, found in (
    (chains[1], results['ranking']['prm_min']),
    (chains[2], results['ranking']['orm']),
    (
      table(page.by_id('calibration').all('table')[0])[1],
      results['calibration']['toy']['ranking'],
    ),
  ):
    within = found['within_problem']
    assert row[1:] == [
      shown(found['auc'], found['ci95'], decimals),
      shown(within['value'], within['ci95'], decimals),
      str(within['problems']),
    ]
  steps = [row[0] for row in table(page.by_id('calibration').all('table')[0])]
  assert steps[1:] == [
    'PRM',
    'length of the step',
    'digits in the step',
    'place in the chain',
  ]


def test_baselines_of_first_errors_say_which_steps_they_flag(tmp_path, results):
  results = copy.deepcopy(results)
  rules = results['localisation']['toy']['baselines']
  # A feature that is high where steps are wrong has its sign turned.
  for name, threshold in (('length', -5.0), ('digits', 2.0), ('place', -1.0)):
    rules[name]['threshold'] = threshold
  section = page_of(tmp_path, results).by_id('localisation')
  rows = {row[0]: row for row in table(section.all('table')[0])}
  found = results['localisation']['toy']['baselines']
  rate = found['noise']['rate']
  assert rows['noise at its best rate'][-1] == f'{100 * rate:.0f}%'
  position = found['position']['position']
  assert rows['the same step in every chain'][-1] == f'step {position + 1}'
  assert rows['length of the step'][1] == percent(found['length']['f1'])
  assert rows['length of the step'][-1] == 'above 5'
  assert rows['digits in the step'][-1] == 'below 2'
  assert rows['place in the chain'][-1] == 'above 2'  # counted from 1
  upper = results['localisation']['toy']['upper_bound']
  assert rows['PRM, best threshold of this set (upper bound)'][1] == percent(
    upper['f1']
  )


def test_warning_signs_are_in_words(tmp_path, results):
  page = page_of(tmp_path, results)
  rows = dict(
    row for found in page.all('table', 'plain') for row in table(found)
  )
  found = results['diagnostics']['toy']
  last = found['minimum_at_last']
  assert rows['toy: chains whose lowest score is that of the last step'] == (
    f'{percent(last["share"])}% of {last["count"]}; '
    f'{percent(last["chance"])}% by chance'
  )
  process = found['right_answer_wrong_process']
  assert rows['toy: right answers by wrong steps that are flagged'] == (
    f'{percent(process["found"])}% of {process["count_wrong_process"]}'
  )
  assert rows['toy: right answers by right steps that are flagged'] == (
    f'{percent(process["false_flags"])}% of {process["count_right_process"]}'
  )
  assert process['found'] != process['false_flags']
  assert 'minimum_at_last' not in page.text
  assert 'length_correlation' not in page.text


def test_coverage_stands_where_chains_are_picked(tmp_path, results):
  counts = {'steps': 25, 'of_steps': 100, 'chains': 9, 'of_chains': 12}
  results = results | {'unread': {'toy': counts}}
  config = {'evaluation': {'best_of_n': 'toy'}}
  page = page_of(tmp_path, results, **config)
  said = '75 of the 100 steps of toy were read, and 3 of its 12 chains to'
  assert said in page.by_id('best-of-n').text
  assert said in page.by_id('localisation').text
  # Best of N chooses from another set here, of which all was read.
  config = {'evaluation': {'best_of_n': 'other'}}
  page = page_of(tmp_path, results, **config)
  assert said not in page.by_id('best-of-n').text


def test_an_outcome_model_leads_where_there_is_no_prm(tmp_path, results):
  found = copy.deepcopy(results)
  del found['best_of_n']['prm_min'], found['ranking']['prm_min']
  page = page_of(tmp_path, found)
  said = page.all('div', 'verdict')[0].text
  curves = found['best_of_n']
  right = percent(curves['orm']['mean'][-1])
  assert f'At N = 4 the ORM picks a right answer for {right}% [' in said
  assert 'the ORM' not in said.split('problems;')[1].split('.')[0]
  null = percent(curves['random_per_text']['mean'][-1])
  assert f'A random score for each text gives {null}% [' in said
  assert 'Over that null it leads by ' in said


def test_a_set_without_steps_has_no_coverage(tmp_path, results):
  counts = dict.fromkeys(('steps', 'of_steps', 'chains', 'of_chains'), 0)
  page = page_of(tmp_path, results | {'unread': {'toy': counts}})
  assert 'of the steps of toy were read' not in page.text


def test_results_of_earlier_versions_have_no_null(tmp_path):
  page = page_of(tmp_path, None)
  assert len(page.by_id('best-of-n').all('table', 'numbers')) == 1
  assert not page.by_id('ranking')
  assert 'A random pick gives 41.0%' in page.all('div', 'verdict')[0].text


def test_what_has_no_number_has_no_plot(tmp_path):
  results = copy.deepcopy(DOCUMENT['results'])
  for curve in results['best_of_n'].values():
    if isinstance(curve, dict):
      curve.update(mean=[None] * 3, ci95=[None] * 3)
  reliability = results['calibration']['gsm8k']['reliability']
  reliability.update(count=[0, 0, 0])
  metrics = {'.': [{'step': 3, 'loss': 0.25}, {'step': 4, 'loss': None}]}
  page = parse(write_report(write(tmp_path, results, metrics=metrics)))
  assert not page.all('svg') and not page.all('figure')
  rows = table(page.by_id('training').all('table')[0])
  assert rows == [['PRM, loss', '0.25, at step 3']]


@pytest.mark.parametrize(
  'break_it, named',
  [
    (
      lambda r: r['best_of_n']['orm']['over_null']['mean'].pop(),
      'best_of_n.orm.over_null.mean',
    ),
    (
      lambda r: r['best_of_n']['orm'].update(over_null=3),
      'best_of_n.orm.over_null',
    ),
    (lambda r: r['ranking']['orm'].update(auc=7), 'ranking.orm.auc is 7'),
    (
      lambda r: r['ranking']['orm'].update(within_problem=[1]),
      'ranking.orm.within_problem',
    ),
    (
      lambda r: r['calibration']['toy'].update(log_loss=-1),
      'calibration.toy.log_loss is -1',
    ),
  ],
)
def test_a_malformed_null_is_named(tmp_path, results, break_it, named):
  results = copy.deepcopy(results)
  break_it(results)
  with pytest.raises(UserError) as caught:
    page_of(tmp_path, results)
  assert named in str(caught.value)


def test_a_correlation_with_length_is_in_words(tmp_path, results):
  results = copy.deepcopy(results)
  results['diagnostics']['toy']['length_correlation'] = -0.2159
  page = page_of(tmp_path, results)
  rows = dict(
    row for found in page.all('table', 'plain') for row in table(found)
  )
  assert rows['toy: correlation of chain score and number of steps'] == '-0.22'
