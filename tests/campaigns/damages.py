"""Damages checkpoints on disk; a run goes on from the last whole one.

    python -m tests.campaigns.damages --minutes 2

Files of the last checkpoint of a run, or of the last two, are cut, emptied or
deleted, or a bit of them is flipped. The same command then ends with the bits
of an undisturbed run, or with one line that names the checkpoint, and goes on
when that is deleted. Some runs have two processes.
"""

import json
import pathlib
import re
import shutil
import tempfile

import numpy as np

from prm_jax.runtime.seals import find_damage, read_sums
from tests.campaigns.campaign import Campaign, run
from tests.campaigns.jobs import (
  PATIENCE,
  PLACES,
  TRAINED,
  Kind,
  nothing_left,
  references,
  untimed,
  world,
)
from tests.shared.saved_runs import saved_steps

KINDS = [
  Kind(job, place)
  for place in ('disk', 'two')
  for job in PLACES[place]
  if job in TRAINED
]
HOW = ('cut', 'empty', 'delete', 'flip', 'flip', 'flip')


def damage(path: pathlib.Path, how: str, rng: np.random.Generator) -> None:
  """Damages a file."""
  data = bytearray(path.read_bytes())
  if how == 'delete':
    path.unlink()
  elif how == 'empty' or not data:
    path.write_bytes(b'')
  elif how == 'cut':
    path.write_bytes(data[: rng.integers(len(data))])
  else:
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    path.write_bytes(data)


def damage_some(
  checkpoint: pathlib.Path, rng: np.random.Generator
) -> list[tuple[str, str]]:
  """Damages one to three files; returns which and how."""
  files = sorted(path for path in checkpoint.rglob('*') if path.is_file())
  # By their number, and by their size: most bits are in a few files.
  sizes = np.array([path.stat().st_size for path in files], float)
  chances = sizes / sizes.sum() if rng.integers(2) else None
  chosen = rng.choice(len(files), rng.integers(1, 4), p=chances)
  done = []
  for i in sorted(set(chosen)):
    how = str(rng.choice(HOW))
    damage(files[i], how, rng)
    done.append((str(files[i].relative_to(checkpoint)), how))
  return done


def case(rng: np.random.Generator) -> int:
  """Damages a finished run and runs its command again."""
  own, folder = world(), references()
  kind = KINDS[rng.integers(len(KINDS))]
  with tempfile.TemporaryDirectory() as tmp:
    workdir, log = pathlib.Path(tmp) / 'run', pathlib.Path(tmp) / 'log'
    shutil.copytree(folder / kind.reference, workdir)
    steps, checkpoints = saved_steps(workdir), workdir / 'checkpoints'
    last = steps[-int(rng.integers(1, 3)) :]
    what = {i: damage_some(checkpoints / str(i), rng) for i in last}
    for _ in range(len(steps) + 1):
      jobs = own.start(kind, folder, str(workdir), log)
      with nothing_left(own, jobs):
        codes = [own.forks.wait(job, PATIENCE) for job in jobs]
      output = (kind, what, codes, [(job.out, job.err) for job in jobs])
      if codes == [0] * len(jobs):
        break
      assert codes == [2] * len(jobs), output
      assert not any('Traceback' in job.err for job in jobs), output
      named = re.search(rf'error: .*{checkpoints}/([0-9]+)', jobs[0].err)
      assert named, output
      shutil.rmtree(checkpoints / named[1])  # as the line says
    assert not any(codes), output
    compare_whole(workdir, folder / kind.reference)
  return 1


def compare_whole(ours: pathlib.Path, theirs: pathlib.Path) -> None:
  """Raises AssertionError unless two runs left the same.

  By the sums of arrays: Orbax does not open a checkpoint of which files are
  damaged that only it reads.
  """
  first, second = (
    json.loads((workdir / 'results.json').read_text())['results']
    for workdir in (ours, theirs)
  )
  assert first == second
  assert untimed(ours) == untimed(theirs)
  a, b = (
    run / 'checkpoints' / str(saved_steps(run)[-1]) for run in (ours, theirs)
  )
  assert a.name == b.name
  assert find_damage(a) == ''
  for tree in ('params', 'rest'):
    assert read_sums(a, tree) == read_sums(b, tree)


CAMPAIGN = Campaign(
  'damages', 'runs with damaged checkpoints', 100, case, repeats=False
)

if __name__ == '__main__':
  run(CAMPAIGN)
