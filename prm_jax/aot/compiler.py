"""Runs the TPU compiler on a machine without a TPU."""

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator

import jax
from jax.experimental import topologies

from prm_jax.runtime.errors import UserError


def open_topology(name: str, slices: int = 1) -> list[jax.Device]:
  """Returns the devices of TPU slices, none of which need be attached.

  Raises:
    UserError: libtpu is missing, or knows no such slice.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise UserError("libtpu is missing: pip install 'jax[tpu]'")
  os.environ['TPU_SKIP_MDS_QUERY'] = '1'  # this machine is no TPU host
  # Its warnings go to stderr, not to files in /tmp.
  os.environ.setdefault('TPU_STDERR_LOG_LEVEL', '0')
  # The lock guards chips, and none is used.
  os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] = '1'
  jax.config.update('jax_platforms', 'cpu')
  try:
    with captured_stderr():
      found = topologies.get_topology_desc(
        platform='tpu', topology_name=name, num_slices=slices
      )
  except Exception as error:  # XLA raises kinds of its own
    text = ' '.join(str(error).split())
    raise UserError(
      f'topology {name!r} is unknown ({text[:200]}); name one such as v5e:4x4 '
      'or v5p:2x2x2'
    ) from None
  return found.devices


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
