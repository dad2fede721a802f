"""Runs jobs from the command line, in stages, and reads what they wrote."""

import json
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.data import builder, chain_sets
from prm_jax.data.chains import Chain
from tests.shared.command_line import run_all

# Name of a job -> its command line without a workdir. '{tmp}/NAME' is the
# workdir of an earlier job.
Jobs = Mapping[str, Sequence[str]]


class FinishedJobs:
  """Jobs that have ended, each in the folder of its name.

  Attributes:
    tmp: the folder of these folders.
    output: what each job printed.
  """

  def __init__(self, tmp: pathlib.Path, *stages: Jobs, **places: Any) -> None:
    """Runs the stages one after another.

    Args:
      places: other words in braces that command lines may have.
    """
    self.tmp, self._places, self.output = tmp, places, {}
    for jobs in stages:
      for name, done in run_named(tmp, jobs, **places).items():
        assert done.returncode == 0, f'{name}: {done.stderr}'
        self.output[name] = done.stdout

  def fill(self, line: Sequence[str]) -> list[str]:
    """A command line with the workdirs of these jobs for words in braces."""
    return [arg.format(tmp=self.tmp, **self._places) for arg in line]

  def folder(self, name: str) -> pathlib.Path:
    return self.tmp / name

  def read(self, name: str, file: str = 'ledger.json') -> Any:
    return json.loads((self.tmp / name / file).read_text())

  def chains(self, name: str) -> list[Chain]:
    return list(chain_sets.read(str(self.tmp / name), 'x'))

  def trees(self, name: str) -> list[dict[str, Any]]:
    lines = (self.tmp / name / 'trees.jsonl').read_text().splitlines()
    return [json.loads(line) for line in lines]


def run_named(
  tmp: pathlib.Path, jobs: Jobs, **places: Any
) -> dict[str, subprocess.CompletedProcess]:
  """Runs command lines, each with the workdir tmp/NAME; returns how they ended.

  Args:
    places: as in `FinishedJobs`.
  """
  lines = [
    [
      *(arg.format(tmp=tmp, **places) for arg in line),
      f'--workdir={tmp / name}',
    ]
    for name, line in jobs.items()
  ]
  return dict(zip(jobs, run_all(lines), strict=True))


def read_outcome(workdir: pathlib.Path) -> dict:
  """Returns what a job left, without what depends on the clock."""
  results = json.loads((workdir / 'results.json').read_text())
  ledger = json.loads((workdir / 'ledger.json').read_text())
  assert results['results'] == ledger
  assert ledger.pop('seconds') > 0
  if searching := ledger.get('search'):
    assert searching['cost'].pop('seconds')['mean'] > 0
  # A server is asked again for what was under way when a process died.
  if ledger.pop('server', None):
    del ledger['money']
  stored = builder.fingerprint(chain_sets.read(str(workdir), 'workdir'))
  assert stored == results['dataset']['fingerprint']
  trees = workdir / 'trees.jsonl'
  return {
    'dataset': results['dataset'],
    'ledger': ledger,
    'chains': (workdir / 'chains.jsonl').read_bytes(),
    'trees': trees.read_bytes() if trees.exists() else b'',
  }


def read_trees_and_scores(
  workdir: pathlib.Path,
) -> tuple[list[dict], list[float]]:
  """Returns a search's trees without the models' scores, and the scores."""
  trees, scores = [], []
  for line in (workdir / 'trees.jsonl').read_text().splitlines():
    trees.append(json.loads(line))
    for node in trees[-1]['tree']['nodes']:
      for field in ('score', 'chain_score', 'logprob'):
        scores.append(node.pop(field, 0.0))
  return trees, scores
