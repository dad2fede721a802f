"""Steps of the `:tiny` config, as one process of several or alone.

Arguments: WHAT FOLDER DEVICES [COORDINATOR PROCESSES PROCESS], DEVICES are a
process's own. WHAT is

    save     the steps, and then a checkpoint in FOLDER
    score    the steps, and then some scores
    alone    the steps on the first 1, 2, 4 and 8 devices, scores, and what is
             in FOLDER restored on two meshes

stdout: the last line is JSON, by name of the run: `losses`, `rows` (a digest of
every row that was read here, batch by batch), `next` (of the batch after them),
`state` (digests of its arrays) and `scores`, as far as there are any.
"""

import hashlib
import json
import pathlib
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.prm_math import get_config
from prm_jax.data.census import take_census
from prm_jax.data.domain_splits import drawn_splits
from prm_jax.data.pipeline import make_batches
from prm_jax.data.shards import share_of_process
from prm_jax.inference.scorer import Scorer
from prm_jax.jobs.settings import read_settings
from prm_jax.jobs.training import batch_config, open_model
from prm_jax.runtime import processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.seals import find_damage, read_sums
from prm_jax.runtime.sharding import make_mesh, path_name
from prm_jax.training.loop import compile_train_step, make_train_step, put_batch
from prm_jax.training.objective import ObjectiveConfig
from prm_jax.training.optim import make_optimizer, make_schedule
from prm_jax.training.train_state import abstract_state, make_init

STEPS = 4
SHARDS = 4
TEXTS = [
  ('mod 10 : 1 + 2', ['1 + 2 = 3', '3 + 1 = 4', '4 * 2 = 8'][:k])
  for k in (1, 2, 3) * 3
]


def rows_of(batch) -> list[str]:
  """A digest of each row, whatever process read it."""
  return [
    hashlib.sha256(
      b''.join(batch[name][i].tobytes() for name in sorted(batch))
    ).hexdigest()[:16]
    for i in range(len(batch['tokens']))
  ]


def digests(state, mesh) -> dict[str, str]:
  """Of every array of a state, read whole on this process."""
  state = state._replace(key=jax.random.key_data(state.key))
  whole = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(state)
  return {
    path_name(path): hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()[:16]
    for path, leaf in jax.tree.leaves_with_path(whole)
  }


class Job:
  """The `:tiny` config on a mesh."""

  def __init__(self, shape: tuple[int, int, int], devices):
    config = get_config('tiny').unlock()
    config.data.shards = SHARDS
    settings = read_settings(config.to_dict())
    data, described = settings.data, open_model(settings).described
    self.format = described.format
    self.model, self.head = described.model, described.head
    axes = dict(zip(('replica', 'fsdp', 'model'), shape, strict=True))
    self.mesh = make_mesh(axes, devices)
    chains = drawn_splits('arithmetic', data, data.samples, settings.seed).train
    how, batching = (self.format, settings.targets), batch_config(settings)
    census = take_census(chains, *how, batching)
    share = share_of_process(self.mesh, data.batch_size, SHARDS)
    self.batches = iter(make_batches(census, batching, share))
    steps = settings.train.steps
    optimizer = make_optimizer(settings.optim, steps)
    self.init = make_init(self.model, self.head, optimizer)
    self.step = make_train_step(
      ObjectiveConfig(self.model, self.head, settings.loss),
      optimizer,
      make_schedule(settings.optim, steps),
    )

  def first_state(self):
    """Drawn on the host: compiling `init` would take as long as all else."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
      if path_name(path) == 'key':
        make = jax.jit(jax.random.key, out_shardings=leaf.sharding)
        return make(0)
      drawn = rng.normal(size=leaf.shape) * 0.1
      # Counters and moments start from nothing.
      values = drawn * ('params' in path_name(path))
      values = values.astype(leaf.dtype)
      return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, values.__getitem__
      )

    abstract = abstract_state(self.init, self.mesh)
    return jax.tree.map_with_path(draw, abstract)

  def train(self) -> dict:
    self.state = self.first_state()
    step = compile_train_step(self.step, self.state, self.mesh)
    losses, rows = [], []
    with jax.set_mesh(self.mesh):
      for _ in range(STEPS):
        batch = next(self.batches)
        rows.append(rows_of(batch))
        self.state, metrics = step(self.state, put_batch(batch, self.mesh))
        losses.append(float(metrics['loss']))
    return {'losses': losses, 'rows': rows}

  def score(self) -> list[float]:
    scorer = Scorer(
      self.state.params, self.model, self.head, self.format, self.mesh
    )
    together = scorer.best_of_n(TEXTS[0][0], [steps for _, steps in TEXTS])
    return np.concatenate([*scorer.score_many(TEXTS), *together[2]]).tolist()


def run_alone(folder: pathlib.Path) -> dict:
  """On one device and more, and from the checkpoint of several processes."""
  found = {}
  for size in (1, 2, 4, 8):
    alone = Job((1, size, 1), jax.devices()[:size])
    found[str(size)] = alone.train()
  found['8']['scores'] = alone.score()
  # Sums that four processes made, of arrays as one reads them.
  saved = folder / str(STEPS)
  found['seal'] = {
    'damage': find_damage(saved),
    'sums': len(read_sums(saved, 'params')),
  }
  for shape in ((1, 1, 1), (2, 2, 2)):
    other = Job(shape, jax.devices()[: int(np.prod(shape))])
    checkpoints = Checkpoints(folder, 1, '')
    restored = checkpoints.restore(
      abstract_state(other.init, other.mesh), other.batches
    )
    checkpoints.close()
    found[f'restored {shape}'] = {
      'state': digests(restored, other.mesh),
      'next': rows_of(next(other.batches)),
    }
  return found


def run_together(what: str, folder: pathlib.Path) -> dict:
  """This process's part."""
  job = Job((1, -1, 1), jax.devices())
  found = job.train()
  if what == 'score':
    found['scores'] = job.score()
  else:
    checkpoints = Checkpoints(folder, 1, '')
    checkpoints.save(STEPS, job.state, job.batches, {})
    found['next'] = rows_of(next(job.batches))  # while it is being saved
    checkpoints.close()
    found['state'] = digests(job.state, job.mesh)
  processes.wait_for_all('end')
  return {what: found}


def main(what: str, folder: str, devices: str, *job: str) -> dict:
  jax.config.update('jax_num_cpu_devices', int(devices))
  if not job:
    return run_alone(pathlib.Path(folder))
  coordinator, count, index = job
  processes.join(coordinator, int(count), int(index))
  processes.compile_afresh_on_cpus()
  return run_together(what, pathlib.Path(folder))


if __name__ == '__main__':
  # On a line of its own: gloo also prints.
  print('\n' + json.dumps(main(*sys.argv[1:])))
