"""The evaluation job: any PRM, judged as its own run judges it."""

import json

import numpy as np
import pytest

import prm_jax
from prm_jax.data.chains import Chain
from prm_jax.data.config import DrawConfig
from prm_jax.data.domain_splits import drawn_splits
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.driver import Cost, Ended
from prm_jax.jobs import evaluate
from tests.shared.command_line import run_all, the_error

pytestmark = pytest.mark.job

SMALL = '--config.evaluation.resamples=50'


def read(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope='module')
def judged(tmp_path_factory):
  """A PRM's run, and an evaluation of it."""
  folder = tmp_path_factory.mktemp('judged')
  prm, again = folder / 'prm', folder / 'judged'
  trained = [
    '--config=configs/prm_math.py:tiny',
    f'--workdir={prm}',
    '--config.orm_baseline=False',
    SMALL,
  ]
  evaluated = [
    '--config=configs/evaluate_math.py:tiny',
    f'--workdir={again}',
    f'--config.prm.path={prm}',
    SMALL,
  ]
  for line in (trained, evaluated):
    [done] = run_all([line])
    assert done.returncode == 0, done.stderr
  return prm, again, evaluated


def test_it_finds_what_the_run_found(judged):
  prm, again, _ = judged
  first, second = (
    json.loads((workdir / 'results.json').read_text())
    for workdir in (prm, again)
  )
  for name in ('best_of_n', 'ranking', 'diagnostics'):
    assert first['results'][name] == second['results'][name], name
  ours, theirs = (
    each['results']['localisation']['arithmetic'] for each in (first, second)
  )
  assert ours['f1'] == pytest.approx(theirs['f1'], abs=1e-6)
  threshold = second['manifest']['threshold']
  assert threshold['source'] == first['manifest']['threshold']['source']
  assert threshold['value'] == pytest.approx(
    first['manifest']['threshold']['value'], abs=1e-5
  )
  scores, others = (
    {(r['set'], r['chain']): r['scores'] for r in read(w / 'step_scores.jsonl')}
    for w in (prm, again)
  )
  assert scores.keys() == others.keys()
  for key, values in scores.items():
    np.testing.assert_allclose(values, others[key], atol=1e-5)
  assert second['results']['cost']['scored_tokens'] > 0
  assert (again / 'report.html').read_text().rstrip().endswith('</html>')


def test_a_second_run_scores_nothing(judged):
  _, again, line = judged
  before = (again / 'journal/process-0.jsonl').read_bytes()
  results = (again / 'results.json').read_bytes()
  # The manifest would tell another command, were it written again.
  [done] = run_all([[*line, '--config.concurrent=9']])
  assert done.returncode == 0, done.stderr
  assert 'to do' not in done.stdout
  assert (again / 'journal/process-0.jsonl').read_bytes() == before
  assert (again / 'results.json').read_bytes() == results


def test_steps_beyond_the_window_have_no_score(judged, tmp_path):
  """As in the PRM's own evaluation: what fits is judged."""
  prm, _, line = judged
  flags = [flag for flag in line if not flag.startswith('--workdir')]
  [done] = run_all(
    [
      [
        *flags,
        f'--workdir={tmp_path}',
        '--config.data.arithmetic.operations=8',
        '--config.data.dev_problems=4',
        '--config.data.test_problems=4',
        '--config.evaluation.ns=(1, 2)',
      ]
    ]
  )
  assert done.returncode == 0, done.stderr
  fmt = prm_jax.load(prm).format
  chains = arithmetic_chains(8)
  found = [r for r in read(tmp_path / 'step_scores.jsonl') if r['set'] != 'dev']
  assert len(found) == len(chains)
  for record, chain in zip(found, chains, strict=True):
    fits = len(fmt.encode(chain.problem, chain.steps).step_ends)
    assert 0 < fits < 8
    assert len(record['scores']) == fits
  results = json.loads((tmp_path / 'results.json').read_text())['results']
  assert results['unread']['arithmetic']['of_chains'] == len(chains)


def arithmetic_chains(operations):
  draw = DrawConfig(
    train_problems=128,
    dev_problems=4,
    test_problems=4,
    arithmetic=ArithmeticConfig(operations=operations),
  )
  splits = drawn_splits('arithmetic', draw, (1, 4, 8), 0)
  return splits.evaluations['arithmetic']


def test_a_prm_is_not_judged_by_what_it_learned(judged, tmp_path):
  prm, _, line = judged
  flags = [flag for flag in line if not flag.startswith('--workdir')]
  [done] = run_all(
    [[*flags, f'--workdir={tmp_path}', '--config.data.test_problems=16']]
  )
  assert f'{prm} was trained on ' in the_error(done)
  assert 'that it is to be judged by' in the_error(done)


@pytest.mark.parametrize(
  ('flags', 'error'),
  [
    ((), "config.prm.path='': expected the --workdir of a trained PRM"),
    (('--config.prm.kind=none',), 'expected a PRM to evaluate'),
    (
      ('--config.prm.kind=generative',),
      "config.prm.generative.path='': expected the --workdir of a critic",
    ),
    (
      ('--config.prm.kind=exact', '--config.evaluation.best_of_n=words'),
      "config.evaluation.best_of_n='words': expected",
    ),
  ],
)
def test_what_is_missing_is_named(flags, error, tmp_path):
  [done] = run_all(
    [
      [
        '--config=configs/evaluate_math.py:tiny',
        f'--workdir={tmp_path / "run"}',
        *flags,
      ]
    ]
  )
  assert error in the_error(done)
  assert not (tmp_path / 'run/results.json').exists()


def test_exact_labels_find_every_error(tmp_path):
  """The truth as a PRM: the verdict of all metrics is known."""
  line = [
    '--config=configs/evaluate_math.py:tiny',
    '--config.prm.kind=exact',
    '--config.prm.exact=steps',
    SMALL,
  ]
  outcome = '--config.targets.supervision=outcome'
  ran = run_all(
    [
      [*line, f'--workdir={tmp_path / "steps"}'],
      [*line, f'--workdir={tmp_path / "outcomes"}', outcome],
    ]
  )
  for done in ran:
    assert done.returncode == 0, done.stderr
  steps, outcomes = (
    json.loads((tmp_path / name / 'results.json').read_text())
    for name in ('steps', 'outcomes')
  )
  assert steps['results']['localisation']['arithmetic']['f1'] == 1.0
  assert steps['manifest']['aggregate'] == 'min'
  # An outcome is judged by the last score alone.
  assert 'localisation' not in outcomes['results']
  assert outcomes['manifest']['aggregate'] == 'last'


def test_a_chain_without_scores_is_not_counted_as_scored():
  items = {
    0: Ended(0, (Chain('p', ('a',)),), '', Cost()),
    1: Ended(1, (), '1 critiques could not be had', Cost(lost=1)),
  }
  assert evaluate.count_scored(items) == {'scored': 1}


def test_critiques_belong_to_the_steps_as_they_were_before_they_were_split():
  record = {'problem': 'p', 'steps': ['a\nb', 'c']}
  known = {
    ('p', ('a', 'b', 'c')): {'critiques': [['why a'], ['why b'], ['why c']]},
    ('p', ('a\nb', 'c')): {'critiques': [['why ab'], ['why c']]},
  }
  split = evaluate.critiques_of(record, known, 'lines')
  assert split == ['why a\nwhy b', 'why c']
  whole = evaluate.critiques_of(record, known, 'given')
  assert whole == ['why ab', 'why c']
  # A critique of the whole chain, and none at all.
  known = {('p', ('a', 'b', 'c')): {'critiques': [['why all']]}}
  assert evaluate.critiques_of(record, known, 'lines') == ['why all']
  assert evaluate.critiques_of(record, {}, 'lines') == []
