"""A policy and a PRM of 2 GB each on eight CPU devices, or opened on one.

    python -m tests.shared.large_models FOLDER make
    python -m tests.shared.large_models FOLDER use
    python -m tests.shared.large_models FOLDER open MODEL DTYPE

`use` prints how much of each model a device holds at most, and whether it
wrote, searched and labelled; `open` prints how much memory opening the policy
or the PRM takes at its highest, both as a share of the model's bytes.
"""

import dataclasses
import json
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from prm_jax.data.encoding import make_format
from prm_jax.inference import loading
from prm_jax.inference.loading import ModelDescription, write_description
from prm_jax.inference.protocols import Request, Scoring
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.jobs import policies
from prm_jax.jobs.prms import open_prm
from prm_jax.jobs.settings.items import SampleSettings
from prm_jax.jobs.settings.policies import PolicyConfig
from prm_jax.jobs.settings.search import PrmConfig, SearchSettings
from prm_jax.jobs.settings.shared import MeshConfig
from prm_jax.models import HeadConfig, LoraConfig, TransformerConfig
from prm_jax.runtime import processes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.sharding import make_mesh
from prm_jax.runtime.workdir import Workdir, write_json
from prm_jax.training.train_state import make_params

FORMAT = make_format('arithmetic', 64)
MODEL = TransformerConfig(
  vocab_size=110,
  d_model=2048,
  n_layers=12,
  n_heads=16,
  n_kv_heads=4,
  head_dim=128,
  d_ff=4864,
)
HEAD = HeadConfig('logit')
MESH = MeshConfig(replica=1, fsdp=4, model=2)
PROBLEM = 'mod 10 : 7 * 3 + 4'


class Saved(NamedTuple):
  params: Any
  key: jax.Array


def make(folder: pathlib.Path) -> None:
  """Writes a policy and a PRM of random weights, as a training run does."""
  mesh = make_mesh(MESH.shape)
  prm = ModelDescription(MODEL, HEAD, LoraConfig(), FORMAT)
  placed = jax.tree.map(lambda x: x.sharding, prm.abstract_params(mesh))
  whole = jax.jit(
    lambda: make_params(jax.random.key(0), MODEL, HEAD), out_shardings=placed
  )()
  # Of one backbone, as making it takes longer than all else.
  for name, head in (('policy', None), ('prm', HEAD)):
    workdir = folder / name
    workdir.mkdir()
    described = dataclasses.replace(prm, head=head)
    write_description(workdir, described)
    write_json(workdir / 'config.json', {'name': name})
    write_json(workdir / 'data.json', {})
    params = whole if head else {'backbone': whole['backbone']}
    checkpoints = Checkpoints(workdir / 'checkpoints', 1, '')
    nothing = {'nothing': np.zeros(1)}
    checkpoints.save(1, Saved(params, jax.random.key(0)), nothing, {})
    checkpoints.close()


def largest_share(params: Any) -> float:
  """The share of the parameters on the device that holds the most."""
  held = dict.fromkeys(jax.devices(), 0)
  for leaf in jax.tree.leaves(params):
    for shard in leaf.addressable_shards:
      held[shard.device] += shard.data.nbytes
  return max(held.values()) / sum(x.nbytes for x in jax.tree.leaves(params))


def use(folder: pathlib.Path) -> dict[str, Any]:
  """Samples, scores and searches, with the models that jobs open."""
  sampling = SamplingConfig(slots=8, max_tokens=8, spread=True, kept=4)
  asked = PolicyConfig(
    kind='workdir', workdir=str(folder / 'policy'), sampling=sampling
  )
  settings = SampleSettings(mesh=MESH, policy=asked)
  policy = policies.open_policy(settings, Workdir(folder, {}))
  [written] = policy.complete([Request(PROBLEM, (), 'x', 8)])
  chosen = PrmConfig(kind='workdir', path=str(folder / 'prm'), rows=4)
  searched = SearchSettings(mesh=MESH, policy=asked, prm=chosen)
  prm = open_prm(searched, asked.solver, Workdir(folder, {}))
  [[scored]] = prm.score([Scoring(PROBLEM, ('7 * 3 = 1', '1 + 4 = 5'))])
  return {
    'policy': largest_share(policy._writer._params),
    'prm': largest_share(prm._params),
    'bytes': sum(x.nbytes for x in jax.tree.leaves(policy._writer._params)),
    'tokens': sum(each.tokens for each in written),
    'scores': scored.scores,
  }


def open_on_one(folder: pathlib.Path, which: str, dtype: str) -> float:
  """Memory that opening a model takes, over the bytes that stay."""
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1})
  jax.block_until_ready(jax.jit(lambda: jax.numpy.zeros(8))())
  # The highest memory so far; that of the process before `exec` would count.
  pathlib.Path('/proc/self/clear_refs').write_text('5')
  before = status('VmRSS')
  if which == 'prm':
    params = loading.load(folder / which, mesh=mesh, dtype=dtype).params
  else:
    sampling = SamplingConfig(slots=1, max_tokens=8)
    policy = loading.load_policy(
      folder / which, sampling, mesh=mesh, dtype=dtype
    )
    params = policy._writer._params
  size = sum(x.nbytes for x in jax.tree.leaves(params))
  return (status('VmHWM') - before) / size


def status(name: str) -> int:
  """A line of this process's status, in bytes."""
  lines = pathlib.Path('/proc/self/status').read_text().splitlines()
  [line] = [line for line in lines if line.startswith(f'{name}:')]
  return 1024 * int(line.split()[1])


def main(folder: str, what: str, *which: str) -> Any:
  jax.config.update('jax_num_cpu_devices', 1 if what == 'open' else 8)
  processes.compile_afresh_on_cpus()
  if what == 'open':
    return open_on_one(pathlib.Path(folder), *which)
  return {'make': make, 'use': use}[what](pathlib.Path(folder))


if __name__ == '__main__':
  print(json.dumps(main(*sys.argv[1:])))
