"""Tests that usage is counted on disk, even if a process is killed."""

import pytest

from prm_jax.inference.server import usage
from prm_jax.inference.server.usage import Usage, UsageLog
from prm_jax.runtime.errors import UserError


def test_usage_is_summed_over_processes_and_runs(tmp_path):
  first = UsageLog(tmp_path / 'usage' / 'process-0.jsonl')
  first.add(Usage(calls=3, tokens=5, retried={'timeout': 2}))
  first.add(Usage(calls=2, retried={'timeout': 1}, failed={'status 500': 1}))
  assert first.total == Usage(
    calls=5, tokens=5, retried={'timeout': 3}, failed={'status 500': 1}
  )
  again = UsageLog(tmp_path / 'usage' / 'process-0.jsonl')
  again.add(Usage(cached=4))
  other = UsageLog(tmp_path / 'usage' / 'process-1.jsonl')
  other.add(Usage(calls=1, prompt_tokens=7, failed={'timeout': 1}))
  assert again.total == Usage(cached=4)
  assert usage.read(tmp_path / 'usage') == Usage(
    calls=6,
    cached=4,
    tokens=5,
    prompt_tokens=7,
    retried={'timeout': 3},
    failed={'status 500': 1, 'timeout': 1},
  )


def test_half_a_line_is_cut_off(tmp_path):
  path = tmp_path / 'process-0.jsonl'
  log = UsageLog(path)
  log.add(Usage(calls=1))
  log.add(Usage(calls=2, tokens=100))
  path.write_bytes(path.read_bytes()[:-5])
  assert usage.read(tmp_path) == Usage(calls=1)
  UsageLog(path).add(Usage(calls=4))
  assert usage.read(tmp_path) == Usage(calls=5)


def test_empty_usage_is_not_logged(tmp_path):
  log = UsageLog(tmp_path / 'process-0.jsonl')
  log.add(Usage())
  assert not (tmp_path / 'process-0.jsonl').exists()
  assert usage.read(tmp_path / 'nowhere') == Usage()


@pytest.mark.parametrize(
  'line',
  ['{"calls": 1', '{"call": 1}', '{"calls": "1"}', '[1]', '{"retried": 2}'],
)
def test_a_damaged_line_is_named(tmp_path, line):
  path = tmp_path / 'process-0.jsonl'
  path.write_text(f'{{"calls": 1}}\n{line}\n')
  with pytest.raises(UserError, match=r'process-0\.jsonl:2: .*delete the line'):
    usage.read(tmp_path)
