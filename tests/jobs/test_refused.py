"""A labelling job whose server refuses some of what it asks."""

import json

import pytest

pytest.importorskip('openai', reason='openai is not installed')

from tests.shared.command_line import (
  LABEL,
  chain_flags,
  run_all,
  the_error,
  workdir_flag,
)
from tests.shared.faulty_server import reply, serving

pytestmark = pytest.mark.job

# Without the words "context" and "length".
TOO_LONG = (
  400,
  {},
  '{"object": "error", "message": "The input (5000 tokens) is longer than the '
  'window (4096 tokens).", "type": "BadRequestError", "code": 400}',
)


def judge(server, folder, *flags):
  return [
    f'{LABEL}judge',
    *chain_flags(12),
    f'--config.policy.endpoint.base_url={server.url}',
    '--config.policy.endpoint.model=m',
    *flags,
    workdir_flag(folder),
  ]


def ledger_of(folder):
  return json.loads((folder / 'ledger.json').read_text())


def test_one_over_long_prompt_and_a_field_that_nobody_takes(tmp_path):
  """The first is one item's failure, the second ends the job at once."""
  with serving() as server, serving() as strict:
    # Of all questions the first three that are asked are too long.
    long = []

    def answer(body, _):
      asked = body['messages'][-1]['content']
      if len(long) < 3 and asked not in long:
        long.append(asked)
      return TOO_LONG if asked in long else reply('\\boxed{-1}')

    server.fault = answer
    strict.fault = lambda body, _: (
      422,
      {},
      '{"detail": "Unexpected fields: top_q"}',
    )
    fine, refused = run_all(
      [
        judge(server, tmp_path / 'fine'),
        judge(
          strict,
          tmp_path / 'strict',
          '--config.policy.endpoint.extra={"top_q": 1}',
        ),
      ]
    )
    assert fine.returncode == 0, fine.stderr
    ledger = ledger_of(tmp_path / 'fine')
    assert ledger['labelled'] == 9
    assert sum(ledger['failed'].values()) == 3
    paid = ledger['server']
    assert paid['failed'] == {'refused with status 400': 3}
    assert paid['retried'] == {}
    assert 'longer than the window' in paid['said']['refused with status 400']
    told = the_error(refused)
    assert 'refused model' in told and 'Unexpected fields: top_q' in told
    assert 'endpoint.extra' in told
    assert 9 <= len(strict.asked) <= 12 + 1

    # The same command asks for the three once more, and it is well.
    server.fault, asked = (
      lambda body, _: reply('\\boxed{-1}'),
      len(server.asked),
    )
    (again,) = run_all([judge(server, tmp_path / 'fine')])
    assert again.returncode == 0, again.stderr
    assert len(server.asked) - asked == 3
    assert ledger_of(tmp_path / 'fine')['labelled'] == 12
