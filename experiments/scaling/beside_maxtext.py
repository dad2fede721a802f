"""What do one train step here and one of MaxText need of the same chips?

    python3.12 -m venv /tmp/maxtext
    /tmp/maxtext/bin/pip install 'maxtext[tpu]==0.2.5' tensorflow-datasets
    /tmp/maxtext/bin/pip install --no-deps -e .
    /tmp/maxtext/bin/python -m experiments.scaling.beside_maxtext

Compiles the train step of Qwen2.5 7B, which predicts the next token, on 256
chips of v5e: by MaxText's own `train_compile`, and the policy job of this
project. The same compiler, mesh, rows and rematerialization; each has its own
attention kernels, whose FLOPs are left out on both sides. Writes maxtext.json
beside this file, and prints a table.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from experiments.runner import ROOT
from experiments.tables import table

SIDES = {'here': 'prm_jax', 'maxtext': 'MaxText 0.2.5'}
CHIPS, FSDP, MODEL, ROW = 256, 64, 4, 1024
TOPOLOGY = 'v5e:16x16'
RESULTS = pathlib.Path(__file__).with_name('maxtext.json')
OURS = 'configs/policy_math.py:qwen2_5_math_7b'
THEIRS = (
  'model_name=qwen2.5-7b',
  f'compile_topology=v5e-{CHIPS}',
  'compile_topology_num_slices=1',
  'per_device_batch_size=1',
  f'max_target_length={ROW}',
  f'ici_fsdp_parallelism={FSDP}',
  f'ici_tensor_parallelism={MODEL}',
  'allow_split_physical_axes=true',
  'remat_policy=full',
  'dtype=bfloat16',
  'weight_dtype=float32',
  'dataset_type=synthetic',
  'enable_checkpointing=false',
  'run_name=beside',
)


def here() -> Any:
  """Returns the compiled train step of this project."""
  from configs import policy_math  # noqa: PLC0415
  from prm_jax.aot import programs  # noqa: PLC0415
  from prm_jax.aot.compiler import open_topology  # noqa: PLC0415
  from prm_jax.jobs import settings  # noqa: PLC0415

  config = policy_math.get_config(OURS.partition(':')[2])
  config.data.update(row_length=ROW, max_length=ROW, batch_size=CHIPS, shards=0)
  config.mesh.model = MODEL
  chosen = settings.read_settings(config.to_dict())
  plan = programs.plan(chosen, open_topology(TOPOLOGY))
  assert (plan.rows, plan.length) == (CHIPS, ROW)
  assert dict(plan.meshes[0].shape) == {
    'replica': 1,
    'fsdp': FSDP,
    'model': MODEL,
  }
  return plan.programs['train'].lower().compile()


def maxtext() -> Any:
  """Returns the compiled train step of MaxText."""
  os.environ |= {'JAX_PLATFORMS': 'cpu', 'TPU_SKIP_MDS_QUERY': '1'}
  os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] = '1'
  train_compile = importlib.import_module(
    'maxtext.trainers.pre_train.train_compile'
  )
  compile_step, kept = train_compile.jit_and_compile, []

  def keep(*args: Any, **kwargs: Any) -> Any:
    kept.append(compile_step(*args, **kwargs))
    return kept[0]

  train_compile.jit_and_compile = keep
  package = importlib.import_module('maxtext')
  config = pathlib.Path(package.__file__).parent / 'configs' / 'base.yml'
  train_compile.main(['train_compile', str(config), *THEIRS])
  return kept[0]


def measure(side: str) -> dict[str, Any]:
  """Compiles one side, and counts with this project's counter."""
  compiled = {'here': here, 'maxtext': maxtext}[side]()
  from prm_jax.aot.chips import chip_of  # noqa: PLC0415
  from prm_jax.aot.compiler import memory_of  # noqa: PLC0415
  from prm_jax.aot.estimate import times  # noqa: PLC0415
  from prm_jax.aot.hlo import read_program  # noqa: PLC0415
  from prm_jax.aot.work import count_work  # noqa: PLC0415

  count = count_work(read_program(compiled.as_text()), CHIPS)
  return {
    'memory_bytes': memory_of(compiled)['total'],
    'flops': count.flops,
    'hbm_bytes': count.memory_bytes,
    'sent_bytes': count.sent_bytes,
    'seconds_at_least': times(count, chip_of('TPU v5 lite')),
  }


def render(found: dict[str, dict[str, Any]]) -> str:
  """Makes the table."""
  rows = [
    [
      SIDES[side],
      f'{each["memory_bytes"] / 1e9:.2f}',
      f'{each["flops"] / 1e12:.1f}',
      f'{each["hbm_bytes"] / 1e9:.0f}',
      f'{sum(each["sent_bytes"].values()) / 1e9:.0f}',
      ', '.join(
        f'{1e3 * each["seconds_at_least"][name]:,.0f}'
        for name in ('compute', 'hbm', 'interconnect')
      ),
    ]
    for side, each in found.items()
  ]
  return table(
    'a step of 262,144 tokens | GB a chip | TFLOP | GB of HBM traffic | '
    'GB sent | compute, HBM, links: ms at least',
    rows,
  )


def read_table() -> str:
  """Makes the table of what was measured last."""
  document = json.loads(RESULTS.read_text())
  return render({side: document[side] for side in SIDES})


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--side', choices=SIDES, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.side:
    print(json.dumps(measure(args.side)))
    return
  found = {}
  for side in SIDES:
    module = 'experiments.scaling.beside_maxtext'
    done = subprocess.run(
      [sys.executable, '-m', module, '--side', side],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    )
    found[side] = json.loads(done.stdout.splitlines()[-1])
  versions = {
    name: importlib.metadata.version(name)
    for name in ('maxtext', 'jax', 'libtpu')
  }
  document = {'versions': versions, 'ours': OURS, 'theirs': THEIRS} | found
  RESULTS.write_text(json.dumps(document, indent=1) + '\n')
  print(render(found))


if __name__ == '__main__':
  main()
