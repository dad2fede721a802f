"""What of smollm2_prm needs no model."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest

from experiments.runner import Runner, config_of
from experiments.smollm2_prm import known_rows, leads, recipes, rows, run
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.evals import scorers
from prm_jax.inference.scorer import StepFeatures
from prm_jax.models import HeadConfig, init_head
from prm_jax.runtime.errors import UserError

pytestmark = pytest.mark.once

CHAIN = Chain('q', ('a 12', 'b', '345'), labels=(StepLabel(1.0),) * 3)
PARTS = {'dev': scorers.make_part([CHAIN])}


def test_texts_and_nulls_score_every_step():
  found = rows.text_scores(PARTS, {'dev': [3]}, [0, 1])
  assert found['digit_count'][0]['dev'][0].tolist() == [-2, 0, -3]
  assert found['length'][0]['dev'][0].tolist() == [-4, -1, -3]
  cut = rows.text_scores(PARTS, {'dev': [2]}, [0])
  assert cut['digit_count'][0]['dev'][0].tolist() == [-2, 0]
  first, second = (scores['dev'][0] for scores in found['noise'])
  assert first.shape == second.shape == (3,)
  assert (first != second).all()


def test_the_text_alone_picks_candidates():
  def candidate(right, *steps):
    return Chain('q', steps, outcome=right)

  wrong = candidate(False, '2 + 2 = 5.')
  pool = [candidate(True, '2 + 2 = 4.', '4 + 1 = 5.'), wrong]
  assert rows.text_picks(pool) == {'fewest_steps': [0.0], 'calculator': [1.0]}
  # Equally many steps, and no equation that is false.
  pool = [candidate(True, 'It is 4.'), candidate(False, 'It is 5.')]
  assert rows.text_picks(pool) == {'fewest_steps': [0.5], 'calculator': [0.5]}


def test_scores_of_a_training_run_are_those_of_its_chains(tmp_path):
  lines = [
    '{"set": "dev", "chain": 4, "scores": [0.5]}',
    '{"set": "dev", "chain": 7, "scores": [0.25, 1.0]}',
  ]
  (tmp_path / 'step_scores.jsonl').write_text('\n'.join(lines) + '\n')
  found = rows.trained_scores(tmp_path, {'dev': [7, 4]})
  assert [x.tolist() for x in found['dev']] == [[0.25, 1.0], [0.5]]
  with pytest.raises(UserError, match='no scores of chain 9 of dev'):
    rows.trained_scores(tmp_path, {'dev': [4, 9]})
  assert isinstance(found['dev'][0], np.ndarray)


def test_readings_are_put_together_by_the_rule_of_an_untrained_head():
  def reading(sums):
    features = Features(sums)
    return rows.Reading(None, None, features, {})

  class Features:
    def __init__(self, sums):
      self.sums = np.array(sums, np.float32)

    def of(self, problem, steps):
      found = np.zeros((len(self.sums), 4)), self.sums
      return StepFeatures(*found)

  first = reading([[-1.0, -2.0], [-3.0, 0.0]])
  second = reading([[-2.0, 0.0], [0.0, -7.0]])
  found = rows.sums_together([first, second], PARTS)
  assert found['dev'][0].tolist() == [-30.0 - 2.0, -30.0 - 7.0]
  rule = init_head(jax.random.key(0), 4, HeadConfig('logit', likelihood=True))
  weights = rule['likelihood_kernel'].ravel()
  np.testing.assert_allclose(rows.RULE / rows.RULE[1], weights / weights[1])


HOME = pathlib.Path(run.__file__).parent


def parse(monkeypatch, workdir, *flags):
  argv = ['run.py', f'--workdir={workdir}', *flags]
  monkeypatch.setattr(sys, 'argv', argv)
  return run.parse()


def finish(workdir, name, seed=1, data='/data', config='', *flags):
  """Makes the folder of a run that is done."""
  path = workdir / recipes.folder(name, seed)
  path.mkdir(parents=True)
  config = config_of(
    'prm_math.py:smollm2',
    (
      f'--config.seed={seed}',
      f'--config.data.dir={data}',
      *recipes.SCORED,
      *recipes.SIZE,
      *flags,
    ),
  )
  (path / 'config.json').write_text(json.dumps(config))
  (path / 'results.json').write_text('{"results": {}}')
  return path


WHOLE = ('--also', 'sft_long', '--train', 'likelihood', 'likelihood_sft')


def test_a_part_does_not_replace_the_results_of_all(
  tmp_path, monkeypatch, capsys
):
  seeds = ('--seeds', '1', '2', '3')
  args, _ = parse(monkeypatch, tmp_path, *WHOLE, *seeds)
  assert args.output == HOME
  # Rows whose runs are elsewhere are kept.
  parse(monkeypatch, tmp_path, '--train', 'lora', '--seeds', '1')
  with pytest.raises(
    UserError, match=r'lose, of likelihood_seed_3, likelihood_sft'
  ):
    parse(monkeypatch, tmp_path, *WHOLE, '--seeds', '1', '2')
  finish(tmp_path, 'likelihood', 3)
  with pytest.raises(UserError, match=r'of likelihood_sft_seed_3; name'):
    parse(monkeypatch, tmp_path, *WHOLE, '--seeds', '1', '2')
  # Elsewhere a part may be.
  parse(monkeypatch, tmp_path, f'--output={tmp_path}/part', '--seeds', '0')
  with pytest.raises(SystemExit):
    parse(monkeypatch, tmp_path, *WHOLE, '--seeds', '0', '1', '2', '3')
  assert 'it chose settings, and is no result' in capsys.readouterr().err
  finish(tmp_path, 'lora', 0)
  with pytest.raises(UserError, match=r'lora_seed_0: its seed chose settings'):
    parse(monkeypatch, tmp_path, *WHOLE, *seeds)


def made(rows_of, runs, **about):
  """Makes the results of some rows, each of which has one number."""
  sets = {'dev': {'chains': 3}, 'gsm8k': {'chains': 2}}
  first = {'encoding_fingerprint': 'e', 'window': 9, 'sets': sets}
  return {
    'manifest': first | {'runs': {name: {'0': {}} for name in runs}} | about,
    'results': {
      'localisation': {'gsm8k': rows_of},
      'best_of_n': dict.fromkeys(runs, 0.5),
    },
  }


def test_rows_of_another_workdir_are_kept():
  known = made(
    {'digits': 1, 'digits_sft_long': 2, 'trained_likelihood': 3},
    ('frozen', 'frozen_sft_long', 'likelihood'),
  )
  now = made(
    {'digits': 10, 'trained_lora': 20},
    ('frozen', 'lora'),
    sets={'dev': {'chains': 4}, 'gsm8k': {'chains': 2}, 'new': {'chains': 1}},
  )
  now['results']['localisation']['new'] = {'digits': 30}
  known_rows.keep_rows(now, known, run.ROWS)
  assert [*now['results']['localisation'].items()] == [
    (
      'gsm8k',
      {
        'digits': 10,
        'digits_sft_long': 2,
        'trained_likelihood': 3,
        'trained_lora': 20,
      },
    ),
    ('new', {'digits': 30}),
  ]
  assert [*now['results']['localisation']['gsm8k']] == [
    row for row in run.ROWS if row in now['results']['localisation']['gsm8k']
  ]
  every = {'frozen', 'lora', 'frozen_sft_long', 'likelihood'}
  assert {*now['manifest']['runs']} == {*now['results']['best_of_n']} == every
  for about in ({'window': 8}, {'sets': {'gsm8k': {'chains': 3}}}):
    now = made({'digits': 10}, ('frozen',), **about)
    with pytest.raises(UserError, match='known rows of frozen_sft_long, likel'):
      known_rows.keep_rows(now, known, run.ROWS)
  # Where all is here, nothing is compared.
  known_rows.keep_rows(now, made({}, ('frozen',)), run.ROWS)


def test_every_kept_row_has_its_run():
  document = json.loads((HOME / 'results.json').read_text())
  of_rows = {
    known_rows.run_of(row)
    for rows_of in document['results']['localisation'].values()
    for row in rows_of
  }
  assert of_rows == {*document['manifest']['runs']}


def test_steps_with_a_false_equation_are_below_all():
  steps = ('2 + 2 = 5', '2 + 2 = 4', 'so be it', '3 * 3 = 8')
  part = scorers.make_part([Chain('q', steps, labels=(StepLabel(1.0),) * 4)])
  scores = {'dev': [np.array([0.5, 0.25, 0.0])]}  # the last is not read
  found = rows.checked(scores, {'dev': part})
  assert found['dev'][0].tolist() == [-1, 0.25, 0.0]


def test_flags_of_jobs_go_on_to_them_alone(tmp_path, monkeypatch, capsys):
  flag, elsewhere = '--config.model.remat=full', f'--output={tmp_path}/part'
  args, extra = parse(monkeypatch, tmp_path, flag, elsewhere)
  assert (extra, args.seeds) == ([flag], (1, 2, 3, 4, 5))
  with pytest.raises(SystemExit):
    parse(monkeypatch, tmp_path, *WHOLE, flag)
  assert 'runs another experiment' in capsys.readouterr().err
  with pytest.raises(SystemExit):
    parse(monkeypatch, tmp_path, elsewhere, '--confg.seed=1')
  assert 'unknown argument --confg.seed=1' in capsys.readouterr().err


def test_runs_of_other_settings_are_not_taken(tmp_path):
  finish(tmp_path, 'likelihood')
  finish(tmp_path, 'state', 2)  # a head of the default kind
  assert recipes.trained(tmp_path) == {'likelihood': [1], 'state': [2]}
  runner, data = Runner(tmp_path, 1), tmp_path / 'data'
  path = recipes.train(runner, 'likelihood', data, (), 1)
  assert path == tmp_path / 'likelihood_seed_1'
  with pytest.raises(SystemExit, match=r'head\.likelihood=True'):
    recipes.train(runner, 'state', data, (), 2)


RIGHT, WRONG = StepLabel(1.0), StepLabel(0.0)
PAIRS = [Chain(q, ('a', 'b'), labels=(RIGHT, WRONG)) for q in 'pq']
PAIRS.append(Chain('r', ('a', 'b'), labels=(RIGHT, RIGHT)))
OF_PAIRS = {name: scorers.make_part(PAIRS) for name in ('dev', 'gsm8k')}


def judge_pairs(*of_chains):
  """Judges scores of the first two chains; those of the third are equal."""
  scores = [np.array(each) for each in (*of_chains, (0.5, 0.5))]
  return [scorers.judge(dict.fromkeys(OF_PAIRS, scores), OF_PAIRS, 0.5)]


def test_each_recipe_is_compared_with_the_rule_of_its_own_start():
  """Its own rule ranks one wrong step too high, that of the other both."""
  judged = {
    'untrained': judge_pairs((0.0, 1.0), (0.0, 1.0)),
    'untrained_sft_long': judge_pairs((0.9, 0.1), (0.0, 1.0)),
    'trained_likelihood': judge_pairs((0.9, 0.1), (0.8, 0.2)),
    'trained_likelihood_sft': judge_pairs((0.9, 0.1), (0.8, 0.2)),
  }
  reported = {'gsm8k': OF_PAIRS['gsm8k']}
  found = scorers.compare(judged, reported, 'untrained', 0, 10)
  leads.add_leads_on_rule(found, judged, reported, 0)
  rows_of = found['gsm8k']
  plain = rows_of['trained_likelihood']['lead_on_rule']
  fine_tuned = rows_of['trained_likelihood_sft']['lead_on_rule']
  assert plain['rule'] == 'untrained'
  assert plain['auc']['difference'] == 1.0
  assert fine_tuned['rule'] == 'untrained_sft_long'
  own = rows_of['untrained_sft_long']['auc']['value']
  assert fine_tuned['auc']['difference'] == pytest.approx(1.0 - own)
  # Without a reading of its start it has none.
  del judged['untrained_sft_long'], rows_of['trained_likelihood_sft']
  del judged['untrained']
  rows_of['trained_likelihood'].pop('lead_on_rule')
  leads.add_leads_on_rule(found, judged, reported, 0)
  assert 'lead_on_rule' not in rows_of['trained_likelihood']


def test_a_lead_on_the_text_is_paired_on_the_same_chains():
  judged = {
    'length': judge_pairs((0.0, 1.0), (0.0, 1.0)),  # ranks no pair right
    'digit_count': judge_pairs((1.0, 0.5), (0.0, 0.5)),
    'untrained': judge_pairs((1.0, 0.0), (1.0, 0.0)),  # every pair
    'checked': judge_pairs((0.0, 1.0), (0.0, 1.0)),
  }
  reported = {'gsm8k': OF_PAIRS['gsm8k']}
  found = scorers.compare(judged, reported, 'untrained', 0, 10)
  leads.add_leads_on_text(found, judged, reported, 0)
  by_row = {row: found['gsm8k'][row] for row in leads.UNTRAINED}
  assert {
    row: {
      other: lead['auc']['difference']
      for other, lead in values['lead_on_text'].items()
    }
    for row, values in by_row.items()
  } == {
    'untrained': {'length': 1.0, 'digit_count': 0.5},
    'checked': {'length': 0.0, 'digit_count': -0.5},
  }
