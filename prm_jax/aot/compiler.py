"""Runs the compilers of TPUs and GPUs on a machine without either."""

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies

from prm_jax.aot.chips import CHIPS, Chip, Gpu
from prm_jax.runtime.determinism import ask_for_same_bits, has_gpu_plugin
from prm_jax.runtime.errors import UserError


def open_topology(name: str, slices: int = 1) -> list[jax.Device]:
  """Returns the devices of TPU slices or GPU hosts; none need be attached.

  Args:
    name: TPU chips, such as v5e:4x4, or the GPUs of a host, such as h100:8.
    slices: number of such slices or hosts.

  Raises:
    UserError: there is no such chip or slice, or the compiler is missing.
  """
  jax.config.update('jax_platforms', 'cpu')
  kind, _, size = name.partition(':')
  for device_kind, chip in CHIPS.items():
    if chip.gpu and chip.name == kind:
      target = gpu_target(device_kind, chip, chip.gpu)
      return _open_gpus(name, target, size or '1', slices)
  known = [chip.name for chip in CHIPS.values()]
  if kind not in known:
    raise UserError(
      f'topology {name!r}: no such chip; expected one of {", ".join(known)}, '
      'as in v5e:4x4 or h100:8'
    )
  return _open_tpus(name, slices)


def _open_tpus(name: str, slices: int) -> list[jax.Device]:
  if importlib.util.find_spec('libtpu') is None:
    raise UserError("libtpu is missing: pip install 'jax[tpu]'")
  os.environ['TPU_SKIP_MDS_QUERY'] = '1'  # this machine is no TPU host
  # Its warnings go to stderr, not to files in /tmp.
  os.environ.setdefault('TPU_STDERR_LOG_LEVEL', '0')
  # The lock guards chips, and none is used.
  os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] = '1'
  return _describe(name, platform='tpu', topology_name=name, num_slices=slices)


def _open_gpus(
  name: str, target: str, count: str, hosts: int
) -> list[jax.Device]:
  if not has_gpu_plugin():
    raise UserError(
      "XLA's compiler for NVIDIA GPUs is missing: pip install 'jax[cuda13]'"
    )
  if not count.isdecimal() or not int(count):
    raise UserError(
      f'topology {name!r}: expected a number of GPUs, such as h100:8'
    )
  ask_for_same_bits(os.environ)  # as jobs do
  jax.devices()  # registers the compiler
  # Slices, hosts of a slice, GPUs of a host.
  shape = f'1x{hosts}x{count}'
  return _describe(name, platform='cuda', target_config=target, topology=shape)


def _describe(name: str, **options: Any) -> list[jax.Device]:
  try:
    with captured_stderr():
      return topologies.get_topology_desc(**options).devices
  except Exception as error:  # XLA raises kinds of its own
    text = ' '.join(str(error).split())
    raise UserError(
      f'topology {name!r} is unknown ({text[:200]}); name one such as v5e:4x4, '
      'v5p:2x2x2 or h100:8'
    ) from None


def gpu_target(device_kind: str, chip: Chip, gpu: Gpu) -> str:
  """Describes a GPU as XLA's GpuTargetConfigProto, in text form.

  Numbers written out here are the same for all GPUs since Ampere.
  """
  major, minor = gpu.capability
  # Of a Hopper, XLA also uses the instructions of that GPU alone.
  features = 'ACCELERATED_FEATURES' if major >= 9 else 'NONE'
  return f'''
    gpu_device_info {{
      name: "{device_kind}"
      cuda_compute_capability {{
        major: {major} minor: {minor} feature_extension: {features}
      }}
      core_count: {gpu.cores}
      fpus_per_core: {gpu.fpus}
      threads_per_core_limit: {gpu.threads}
      shared_memory_per_core: {gpu.shared}
      shared_memory_per_block_optin: {gpu.shared - 1024}
      l2_cache_size: {gpu.l2}
      clock_rate_ghz: {gpu.clock}
      device_memory_size: {int(chip.hbm_bytes)}
      memory_bandwidth: {int(chip.hbm_rate)}
      device_vendor: "NVIDIA Corporation"
      threads_per_block_limit: 1024
      threads_per_warp: 32
      shared_memory_per_block: 49152
      registers_per_core_limit: 65536
      registers_per_block_limit: 65536
      thread_dim_limit_x: 1024
      thread_dim_limit_y: 1024
      thread_dim_limit_z: 64
      block_dim_limit_x: 2147483647
      block_dim_limit_y: 65535
      block_dim_limit_z: 65535
      device_address_bits: 64
      pcie_bandwidth: 34359738368
      driver_version: "13.0.0"
      runtime_version: "13.0.0"
      compile_time_toolkit_version: "13.0.0"
      dnn_version: "9.10.0"
    }}
    platform_name: "CUDA"
    dnn_version_info {{ major: 9 minor: 10 }}
    device_description_str: "{device_kind}"
  '''


@contextlib.contextmanager
def captured_stderr() -> Iterator[list[str]]:
  """Captures stderr at the file descriptor, where the compiler writes it."""
  lines: list[str] = []
  sys.stderr.flush()
  with tempfile.TemporaryFile() as file:
    stderr = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
      yield lines
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)
      file.seek(0)
      lines += file.read().decode(errors='replace').splitlines()


def compile_program(
  lowered: jax.stages.Lowered,
) -> tuple[jax.stages.Compiled | None, list[str]]:
  """Returns the program, None if it does not fit; and the compiler's lines."""
  with captured_stderr() as lines:
    try:
      return lowered.compile(), lines
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      return None, [' '.join(str(error).split())]


def memory_of(compiled: jax.stages.Compiled) -> dict[str, float]:
  """Counts bytes on one device; outputs in an input's memory count once."""
  found = compiled.memory_analysis()
  parts = {
    'arguments': found.argument_size_in_bytes,
    'outputs': found.output_size_in_bytes - found.alias_size_in_bytes,
    'temporaries': found.temp_size_in_bytes,
    'code': found.generated_code_size_in_bytes,
  }
  return parts | {'total': sum(parts.values())}
