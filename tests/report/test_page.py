"""The report page against the numbers and words that went into it."""

import copy
import json

import numpy as np
import pytest

from prm_jax.evals import best_of_n, localisation
from prm_jax.evals.best_of_n import best_of_n_curve, oracle_curve
from prm_jax.evals.calibration import calibration
from prm_jax.report import write_report
from prm_jax.report.explorer import SCRIPT, SCRIPT_HASH
from prm_jax.runtime.errors import UserError
from tests.report.workdir import (
  DOCUMENT,
  losses,
  parse,
  record,
  table,
  write,
)


def test_best_of_n_table_holds_the_inputs(tmp_path):
  section = parse(write_report(write(tmp_path))).by_id('best-of-n')
  head, *rows = table(section.all('table')[0])
  assert head == ['picked by', 'N = 1', 'N = 4', 'N = 64']
  by_name = {row[0]: row[1:] for row in rows}
  assert list(by_name) == [
    'PRM (min)',
    'PRM (mean)',
    'ORM',
    'majority vote',
    'random pick',
    'oracle',
  ]
  assert by_name['PRM (min)'] == [
    '41.0 [38.0, 43.0]',
    '63.4 [60.4, 65.4]',
    '85.5 [82.5, 87.5]',
  ]
  assert by_name['majority vote'][-1] == '47.5 [44.5, 49.5]'
  assert ['problems', '400'] in table(section.all('table')[1])


def test_verdict_says_what_the_intervals_say(tmp_path):
  page = parse(write_report(write(tmp_path)))
  said = page.all('div', 'verdict')[0].text
  assert (
    'At N = 64 the PRM (min) picks a right answer for 85.5% [82.5, 87.5] of '
    'problems; majority vote 47.5% [44.5, 49.5]; the ORM 80.0% [77.0, 82.0].'
  ) in said
  assert 'lies above that of majority vote and the ORM.' in said
  assert 'with F1 31.3 [26.0, 36.6] on gsm8k (random step: 19.0)' in said
  assert 'off by 3.1 points' in said


def test_verdict_admits_a_loss_and_an_overlap(tmp_path):
  results = copy.deepcopy(DOCUMENT['results'])
  best = results['best_of_n']
  best['majority'] = {'mean': [0.4, 0.9, 0.95], 'ci95': [[0.9, 0.97]] * 3}
  best['orm']['ci95'][-1] = [0.8, 0.9]
  said = parse(write_report(write(tmp_path, results)))
  said = said.all('div', 'verdict')[0].text
  assert 'lies below that of majority vote and overlaps that of the ORM' in said


def test_the_manifest_chooses_the_headline_not_the_numbers(tmp_path):
  write(tmp_path, manifest={'aggregate': 'mean'})
  said = parse(write_report(tmp_path)).all('div', 'verdict')[0].text
  assert said.startswith('At N = 64 the PRM (mean) picks a right answer for 70')


def test_best_of_n_figure_is_to_scale(tmp_path):
  section = parse(write_report(write(tmp_path))).by_id('best-of-n')
  figure = section.all('svg')[0]
  assert figure.attributes['role'] == 'img'
  assert 'PRM (min) 85.5%' in figure.attributes['aria-label']
  assert section.all('figcaption')
  dots = [
    (float(dot.attributes['cx']), float(dot.attributes['cy']))
    for dot in figure.all('circle', 'lead')
  ]
  (x1, y1), (x4, y4), (x64, y64) = dots
  # log2: 1 -> 4 is two doublings, 4 -> 64 is four; y is linear and points up.
  assert (x64 - x4) / (x4 - x1) == pytest.approx(2, abs=0.01)
  expected = (0.8552 - 0.634) / (0.634 - 0.41)
  assert (y4 - y64) / (y1 - y4) == pytest.approx(expected, abs=0.02)
  assert y64 < y4 < y1
  # One band for the PRM, the ORM and the majority vote each.
  assert len(figure.all('path', 'band')) == 3


def test_localisation_stands_beside_its_baselines(tmp_path):
  section = parse(write_report(write(tmp_path))).by_id('localisation')
  assert table(section.all('table')[0])[1:] == [
    ['gsm8k'],
    ['PRM', '31.3 [26.0, 36.6]', '22.0', '54.0', 'below 0.4'],
    ['random step', '19.0', '15.0', '26.0', '–'],  # noqa: RUF001
    ['never wrong', '0.0', '0.0', '100.0', '–'],  # noqa: RUF001
  ]
  # Right steps and their false alarms, wrong steps and those that are found.
  assert table(section.all('table')[1])[-2:] == [
    ['1', '100', '10.0', '4', '25.0'],
    ['2 and later', '1,500', '0.0', '0', '–'],  # noqa: RUF001
  ]


def test_calibration_shows_filled_bins_with_counts(tmp_path):
  section = parse(write_report(write(tmp_path))).by_id('calibration')
  numbers, bins = section.all('table')
  assert ['expected calibration error, all steps', '0.0312'] in table(numbers)
  assert table(bins)[1:] == [
    ['0.100', '0.200', '40'],
    ['0.900', '0.850', '1,200'],
  ]
  figure = section.all('svg')[0]
  assert len(figure.all('circle')) == len(figure.all('rect')) == 2
  for dot, (score, right) in zip(
    figure.all('circle'), [(0.1, 0.2), (0.9, 0.85)], strict=True
  ):
    place = float(dot.attributes['cx']), float(dot.attributes['cy'])
    expected = 46 + 280 * score, 310 - 280 * right
    assert place == pytest.approx(expected, abs=0.05)
  small, large = (float(r.attributes['height']) for r in figure.all('rect'))
  assert large / small == pytest.approx(1200 / 40, abs=0.1)
  assert '0.10 to 0.20 (40 steps)' in figure.attributes['aria-label']


def test_unknown_sections_and_the_manifest_are_plain_tables(tmp_path):
  page = parse(write_report(write(tmp_path)))
  headings = [h.text for h in page.all('h2')]
  assert 'Diagnostics' in headings and 'In all' in headings
  rows = [row for t in page.all('table', 'plain') for row in table(t)]
  assert ['min_is_last', '0.25'] in rows
  assert ['nested.deep', '–'] in rows  # noqa: RUF001
  assert ['speed', '1234.5'] in rows
  assert ['versions.jax', '0.10.2'] in rows
  assert ['wall_seconds', '3725 (1:02:05 since its last start)'] in rows
  assert (
    page.by_id('manifest').all('pre')[0].text
    == (DOCUMENT['manifest']['command'])
  )


def test_absent_data_leaves_no_section(tmp_path):
  page = parse(write_report(write(tmp_path, results={})))
  assert [h.text for h in page.all('h2')] == ['How to reproduce this run']
  assert not page.all('svg') and not page.all('details')
  assert [a.attributes['href'] for a in page.all('a')] == ['#manifest']


@pytest.mark.parametrize(
  'name', ['best_of_n', 'localisation', 'calibration', 'diagnostics']
)
def test_any_section_may_be_absent_alone(tmp_path, name):
  full = len(parse(write_report(write(tmp_path))).all('section'))
  results = {k: v for k, v in DOCUMENT['results'].items() if k != name}
  page = parse(write_report(write(tmp_path, results)))
  assert len(page.all('section')) == full - 1


def test_error_marks_are_on_the_right_steps(tmp_path):
  page = parse(write_report(write(tmp_path, records=[record(chosen=True)])))
  steps = page.by_id('chains').all('li')
  classes = [step.attributes['class'].split() for step in steps]
  assert [('error' in c, 'after' in c) for c in classes] == [
    (False, False),
    (True, False),
    (False, True),
  ]
  # The threshold is 0.4: the third step is the first to score below it.
  assert [step.text for step in steps] == [
    '1 0.90 one',
    '2 0.60 two ✗ First error',
    '3 0.20 three ⚑ Flagged',
  ]
  assert [step.attributes['style'] for step in steps] == [
    '--s:90%',
    '--s:60%',
    '--s:20%',
  ]
  meta = page.by_id('chains').all('p', 'meta')[0].text
  assert meta.startswith('Chosen · answer 7 , wrong · first error at step 2')
  assert 'flagged at step 3' in meta


def test_unknown_truth_is_not_shown_as_right(tmp_path):
  rows = [
    record(values=(), outcome=None, answer=None),
    record(values=(1, 1, 1), scores=(0.9, 0.9, 0.9)),
  ]
  page = parse(write_report(write(tmp_path, records=rows)))
  first, second = (p.text for p in page.by_id('chains').all('p', 'meta'))
  assert 'answer none , not checked · steps not labelled' in first
  assert 'no step labelled wrong · none flagged' in second
  assert not page.by_id('chains').all('li', 'error')


def assert_scripts_are_ours(page):
  """Checks that the chains are JSON and that only our script is allowed."""
  data, program = page.all('script')
  assert data.attributes['type'] == 'application/json'
  json.loads(''.join(data.words))
  assert ''.join(program.words) == SCRIPT and 'innerHTML' not in SCRIPT
  [policy] = [m for m in page.all('meta') if 'http-equiv' in m.attributes]
  assert f"script-src '{SCRIPT_HASH}'" in policy.attributes['content']


def test_texts_of_a_model_are_escaped(tmp_path):
  evil = '</p><script>alert(1)</script><img src=x onerror="alert(2)"> & \ud800'
  rows = [record(problem=evil, answer=evil, note=evil, steps=(evil, 'b', 'c'))]
  results = DOCUMENT['results'] | {evil: {evil: evil}}
  results['best_of_n'] = results['best_of_n'] | {evil: {'mean': [0.1] * 3}}
  write(tmp_path, results, rows, {'.': [{'step': 1, evil: 2.0}]})
  page = parse(write_report(tmp_path))
  assert_scripts_are_ours(page)
  assert not page.all('img')
  shown = evil.replace('\ud800', '?')
  assert page.by_id('chains').all('p', 'words')[0].text == shown
  assert page.all('title')[0].text == 'A & B <i>run</i>'
  handlers = [
    name
    for node in page.all('svg') + page.all('p') + page.all('td')
    for name in node.attributes
    if name.startswith('on')
  ]
  assert not handlers


def test_the_page_loads_nothing_from_outside(tmp_path):
  metrics = {'.': losses(50, 0.2)}
  path = write_report(write(tmp_path, records=[record()], metrics=metrics))
  text = path.read_text()
  assert 'http://' not in text and 'https://' not in text
  assert 'url(' not in text and '@import' not in text
  page = parse(path)
  assert not page.all('link')
  assert_scripts_are_ours(page)
  policy = [m.attributes.get('content', '') for m in page.all('meta')]
  assert any(content.startswith("default-src 'none'") for content in policy)


def test_same_input_same_bytes(tmp_path):
  pages = []
  for name in ('a', 'b'):
    workdir = tmp_path / name
    workdir.mkdir()
    (workdir / 'config.json').write_text('{"b": 1, "a": {"lr": 0.001}}')
    metrics = {'.': losses(40, 0.2), 'orm': losses(30, 0.4)}
    write(workdir, records=[record()], metrics=metrics)
    pages.append(write_report(workdir).read_bytes())
  assert pages[0] == pages[1]
  assert write_report(workdir).read_bytes() == pages[1]  # its own output aside


def test_two_runs_are_two_curves(tmp_path):
  rows = losses(40, 0.2)
  rows[7]['loss'] = None
  rows.append(rows[3] | {'loss': 0.5})  # logged again after a resume
  rows[5]['eval/auroc'] = rows[6]['eval/auroc'] = 0.9
  rows = rows[20:] + rows[:20]  # lines of two processes, out of order
  write(tmp_path, metrics={'.': rows, 'orm': losses(30, 0.4)})
  section = parse(write_report(tmp_path)).by_id('training')
  main, small = section.all('svg', 'figure')
  assert len(main.all('path', 'line')) == 2
  assert len(small.all('path', 'line')) == 1
  assert 'PRM from 1.2 to 0.225 at step 39' in main.attributes['aria-label']
  assert 'Values that are not finite are left out: PRM loss: 1.' in section.text


def test_a_long_run_makes_a_small_page(tmp_path):
  rows = [
    {'step': t, 'loss': 1.0, 'lr': 1e-3, 'grad_norm': 2.0}
    for t in range(20_000)
  ]
  rows[12_345]['loss'] = 1.5
  many = [record(steps=('word ' * 3000, 'b', 'c'))] * 60
  path = write_report(write(tmp_path, records=many, metrics={'.': rows}))
  assert path.stat().st_size < 500_000
  page = parse(path)
  assert len(page.by_id('chains').all('article')) == 24
  assert 'The first 24 of 60 chains' in page.by_id('chains').text
  assert '(11,000 more characters)' in page.by_id('chains').text


def test_config_is_shown_collapsed(tmp_path):
  (tmp_path / 'config.json').write_text('{"optim": {"lr": 0.001}}')
  (details,) = parse(write_report(write(tmp_path))).all('details')
  assert 'open' not in details.attributes
  assert '"lr": 0.001' in details.text


def test_the_page_shows_what_evals_returns(tmp_path):
  rng = np.random.default_rng(0)
  scores, mask = rng.random((40, 4)), np.ones((40, 4), bool)
  labels = (rng.random((40, 4)) < scores).astype(float)
  labels[:20] = 1
  firsts = np.where((labels < 0.5).any(1), (labels < 0.5).argmax(1), -1)
  correct = labels[:, :3]
  curves = {
    'prm_min': best_of_n_curve(scores[:, :3], correct, [1, 3]),
    'oracle': oracle_curve(correct, [1, 3]),
  }
  found = {
    'best_of_n': best_of_n.curves(curves, [1, 3], 0, 50),
    'calibration': {'gsm8k': calibration(scores, labels, mask)},
    'localisation': {
      'gsm8k': localisation.at_threshold(scores, mask, firsts, 0.5)
    },
  }
  page = parse(write_report(write(tmp_path, found)))
  mean = found['best_of_n']['oracle']['mean'][-1]
  row = table(page.by_id('best-of-n').all('table')[0])[-1]
  assert row[-1].startswith(f'{100 * mean:.1f} [')
  filled = [
    n for n in found['calibration']['gsm8k']['reliability']['count'] if n
  ]
  bins = table(page.by_id('calibration').all('table')[1])[1:]
  assert [int(row[-1]) for row in bins] == filled
  f1 = found['localisation']['gsm8k']['f1']
  assert table(page.by_id('localisation'))[2][1] == f'{100 * f1:.1f}'


def test_unread_steps_are_reported(tmp_path):
  results = copy.deepcopy(DOCUMENT['results'])
  counts = {'steps': 918, 'of_steps': 6402, 'chains': 190, 'of_chains': 1000}
  results['unread'] = {'math': counts}
  results['localisation']['gsm8k']['count_undecided'] = 1234
  page = parse(write_report(write(tmp_path, results)))
  assert (
    'gsm8k: 1,234 chains have no verdict' in page.by_id('localisation').text
  )
  assert 'Steps that were not read' in [h.text for h in page.all('h2')]
  assert '918 of 6,402 steps, in 190 of 1,000 chains' in page.text
  del counts['of_steps']
  with pytest.raises(UserError, match=r'unread\.math: expected counts'):
    write_report(write(tmp_path, results))


def test_chains_that_are_not_ranked_are_counted(tmp_path):
  results = copy.deepcopy(DOCUMENT['results'])
  auc = {'auc': 0.75, 'ci95': [0.7, 0.8]}
  results['ranking'] = {'prm_min': auc, 'distinct_texts': 2.5, 'left_out': 1234}
  page = parse(write_report(write(tmp_path, results)))
  shown = '1,234 of the chains with a known outcome are left out.'
  assert shown in page.by_id('ranking').text
  for none in ({'left_out': 0}, {}):
    del results['ranking']['left_out']
    results['ranking'] |= none
    page = parse(write_report(write(tmp_path, results)))
    assert 'left out' not in page.by_id('ranking').text
  results['ranking']['left_out'] = 'many'
  with pytest.raises(UserError, match=r'ranking\.left_out is .many.: expected'):
    write_report(write(tmp_path, results))


def test_heads_on_a_frozen_backbone_are_words(tmp_path):
  one = {
    'f1': 0.25,
    'ci95': [0.05, 0.55],
    'seeds': [0.2, 0.3],
    'auc': {'value': 0.75, 'ci95': [0.7, 0.8], 'seeds': [0.7, 0.8]},
  }
  results = {'heads': {'gsm8k': {'both': one}}}
  page = parse(write_report(write(tmp_path, results)))
  assert 'Heads on the frozen backbone' in [h.text for h in page.all('h2')]
  shown = 'F1 25.0 [5.0, 55.0], step AUC 0.750, 2 seeds'
  assert 'gsm8k: both' in page.text and shown in page.text
  del one['seeds']
  with pytest.raises(UserError, match=r'heads\.gsm8k\.both\.seeds'):
    write_report(write(tmp_path, results))


@pytest.mark.parametrize(
  ('thresholds', 'shown'),
  [
    ([None, None], '“flagged” the first step that scores below 0.4.'),
    ([0.4, 0.4], '“flagged” the first step that scores below 0.4.'),
    ([0.3, None], '“flagged” the first step that scores below the threshold'),
    ([0.0, 0.0], 'the first step that is labelled wrong. Steps after'),
  ],
)
def test_the_page_explains_flags_only_where_there_is_a_threshold(
  thresholds, shown, tmp_path
):
  """An outcome model flags no step: the thresholds of its chains are 0."""
  chains = [
    record(problem=f'q{i}', threshold=own) for i, own in enumerate(thresholds)
  ]
  page = parse(write_report(write(tmp_path, records=chains)))
  said = page.by_id('chains').all('p')[0].text
  assert shown in said
  flags = thresholds[0] != 0
  assert ('flagged' in page.by_id('chains').text) == flags
  assert ('flagged' in page.by_id('explorer').text) == flags
