"""The engine in this process: no work is lost or done twice."""

import dataclasses
import json

import pytest

from prm_jax.data import chain_sets
from prm_jax.inference.driver import CannotDo, Cost
from prm_jax.inference.server import usage
from prm_jax.jobs.settings.items import PriceConfig
from prm_jax.labels import rollouts
from prm_jax.labels.labelling import as_work
from prm_jax.runtime.errors import UserError
from tests.shared.command_line import contents
from tests.shared.counting_policy import Counting
from tests.shared.item_job import CHAINS, SETTINGS, label, run


def test_items_that_lacked_answers_are_tried_again_and_no_others(tmp_path):
  whole, expected, _ = run(tmp_path / 'whole', Counting())
  assert expected['labelled'] == 9
  assert expected['failed'] == {'it is the fourth': 1}
  # The last step of three needs no rollouts.
  assert expected['calls'] == 10 * 2 * 2

  workdir = tmp_path / 'losing'
  partial, ledger, log = run(workdir, Counting(loses=9))
  short = ledger['failed'].pop('some rollouts could not be had')
  assert 0 < short < 9
  assert ledger['labelled'] + short == 9
  # Both completions of every ninth of twenty requests.
  assert ledger['lost'] == 4
  assert partial != whole
  assert f'tries again {short} that lacked answers' in log[-1]

  again = Counting()
  dataset, ledger, log = run(workdir, again)
  assert dataset == whole
  assert sum(again.rounds) == 2 * short
  assert f'{short} of 10 to do, {short} of them once more' in log[0]
  assert ledger['failed'] == expected['failed']
  assert ledger['calls'] == expected['calls'] + 4 * short
  same = ('labelled', 'failed')
  assert all(ledger[name] == expected[name] for name in same)
  left = chain_sets.read(str(workdir), 'x')
  assert [c.meta['id'] for c in left] == list('012456789')


def test_items_in_flight_when_a_model_gave_up_stay_open(tmp_path):
  """Even those that ended with a chain then."""

  def patient(chain):
    try:
      return (yield from label(chain))
    except CannotDo as error:
      if 'is gone' not in str(error) or chain.meta['id'] == '4':
        raise
      return chain

  changes = {'start': lambda i: as_work(patient(CHAINS[i]))}
  whole, expected, _ = run(tmp_path / 'whole', Counting(), **changes)
  workdir = tmp_path / 'gone'
  with pytest.raises(UserError, match='the server'):
    run(workdir, Counting(gives_up=1), **changes)
  assert not (workdir / 'results.json').exists()
  lines = (workdir / 'journal' / 'process-0.jsonl').read_text().splitlines()
  stopped = [line for line in map(json.loads, lines) if 'interrupted' in line]
  assert {each['failed'] for each in stopped} == {'', 'the server is gone'}
  done = len(lines) - 1 - len(stopped)
  dataset, ledger, log = run(workdir, Counting(), **changes)
  assert dataset == whole
  assert ledger['failed'] == expected['failed']
  assert ledger['labelled'] == expected['labelled']
  again = f'{10 - done} of 10 to do, {len(stopped)} of them once more'
  assert again in log[0]


def test_items_done_without_some_answers_are_counted(tmp_path):
  config = rollouts.RolloutConfig(2)
  changes = {'start': lambda i: as_work(rollouts.label(CHAINS[i], config))}
  _, ledger, log = run(tmp_path, Counting(loses=9), **changes)
  # Of twenty requests two were lost, each of another chain.
  assert (ledger['labelled'], ledger['lost']) == (10, 4)
  assert ledger['partly_answered'] == 2
  assert not ledger['failed']
  assert 'labels: 2 done without some of their answers' in log
  # They stay as they are.
  again = Counting()
  _, ledger, log = run(tmp_path, again, **changes)
  assert not again.rounds
  assert ledger['partly_answered'] == 2
  assert 'all is done' in log[0]
  _, ledger, _ = run(tmp_path / 'whole', Counting(), **changes)
  assert ledger['partly_answered'] == 0


def test_a_finished_job_asks_and_writes_nothing(tmp_path):
  run(tmp_path, Counting())
  before = contents(tmp_path)
  policy = Counting()
  _, _, log = run(tmp_path, policy)
  assert not policy.rounds
  assert log == [f'labels: all is done; the results are in {tmp_path}']
  assert contents(tmp_path) == before


def test_missing_results_are_written(tmp_path):
  """A process may die after its last item."""
  run(tmp_path, Counting())
  whole = (tmp_path / 'results.json').read_bytes()
  (tmp_path / 'results.json').unlink()
  (tmp_path / 'ledger.json').unlink()
  policy = Counting()
  run(tmp_path, policy)
  assert not policy.rounds
  dataset = json.loads(whole)['dataset']
  written = json.loads((tmp_path / 'results.json').read_text())
  assert written['dataset'] == dataset


def test_a_job_resumes_with_more_in_flight_and_at_another_price(tmp_path):
  _, ledger, _ = run(tmp_path, Counting(loses=9))
  again = Counting()
  settings = dataclasses.replace(
    SETTINGS, concurrent=64, price=PriceConfig(tokens=1.0)
  )
  dataset, ledger, _ = run(tmp_path, again, settings)
  assert ledger['labelled'] == 9
  assert ledger['money'] > 0
  assert len(again.rounds) == 1
  assert dataset == run(tmp_path / 'whole', Counting())[0]


def test_another_policy_cannot_resume_a_job(tmp_path):
  run(tmp_path, Counting())
  other = Counting()
  other.name = 'another'
  with pytest.raises(UserError, match='its policy is counting, not another'):
    run(tmp_path, other)


def test_money_is_tokens_times_price(tmp_path):
  price = PriceConfig(tokens=2.0, prompt_tokens=0.5)
  settings = dataclasses.replace(SETTINGS, price=price)
  _, ledger, _ = run(tmp_path, Counting(), settings)
  dollars = 2e-6 * ledger['tokens'] + 0.5e-6 * ledger['prompt_tokens']
  assert dollars > 0
  assert ledger['money'] == pytest.approx(dollars, rel=1e-12)


def test_what_a_critic_at_a_server_wrote_and_read_is_paid_too(tmp_path):
  log = usage.UsageLog(tmp_path / 'prm_usage' / 'process-0.jsonl')
  log.add(usage.Usage(calls=1, tokens=1_000_000, prompt_tokens=5_000_000))
  price = PriceConfig(tokens=10.0, prompt_tokens=2.0)
  settings = dataclasses.replace(SETTINGS, price=price)
  _, ledger, _ = run(tmp_path, Counting(), settings)
  assert ledger['prm_server']['calls'] == 1
  own = price.dollars(Cost(ledger['tokens'], ledger['prompt_tokens']))
  assert own > 0
  assert ledger['money'] == pytest.approx(own + 10.0 + 10.0, rel=1e-12)


def test_not_one_chain_is_an_error_that_names_the_ledger(tmp_path):
  def never(index):
    yield from ()
    raise CannotDo(f'no, not {index % 2}')

  with pytest.raises(UserError, match='none of 10 items gave a chain; see'):
    run(tmp_path, Counting(), start=never)
  ledger = json.loads((tmp_path / 'ledger.json').read_text())
  assert ledger['failed'] == {'no, not 0': 5, 'no, not 1': 5}
  assert not (tmp_path / 'results.json').exists()


def test_the_progress_line_says_what_the_job_costs(tmp_path, capsys):
  settings = dataclasses.replace(SETTINGS, price=PriceConfig(tokens=1000.0))
  _, ledger, _ = run(tmp_path, Counting(), settings)
  line = capsys.readouterr().err
  assert line == (
    f'labels 10/10  1 failed  40 calls  {ledger["tokens"]} tokens  '
    f'${ledger["money"]:.2f}  0:00 left\n'
  )
