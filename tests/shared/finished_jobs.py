"""Runs jobs from the command line, in stages, and reads what they wrote."""

import json
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.data import chain_sets
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
