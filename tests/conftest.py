"""What every test shares: the CPU, a compilation cache, one finished run."""

import os
import pathlib
import shutil
import tempfile
from importlib import metadata

import hypothesis

# Before JAX is imported, and inherited by every process that a test starts.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Where there is room, tests write to memory: a disk makes them wait for it.
_MEMORY = pathlib.Path('/dev/shm')
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 4 << 30:
  os.environ.setdefault('PYTEST_DEBUG_TEMPROOT', str(_MEMORY))
_SESSION_CACHE = None
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  _SESSION_CACHE = tempfile.mkdtemp(prefix='prm_jax_xla_')
  os.environ['JAX_COMPILATION_CACHE_DIR'] = _SESSION_CACHE
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.2'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
# Tests compile much and compute little: without LLVM's optimization passes, and
# with the older of XLA's two emitters of fusions where jaxlib has both, they
# take half of the time. XLA_FLAGS='' tests what users run.
_QUICK = (
  '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
)
if tuple(map(int, metadata.version('jaxlib').split('.')[:2])) <= (0, 10):
  _QUICK += ' --xla_cpu_use_fusion_emitters=false'
os.environ.setdefault('XLA_FLAGS', _QUICK)

import pytest  # noqa: E402
from absl import flags  # noqa: E402

from tests.shared import command_line  # noqa: E402

# grain's workers read absl flags, which pytest does not parse.
flags.FLAGS.mark_as_parsed()


def pytest_xdist_auto_num_workers():
  # Some wait: for a signal, a lost process, a server that is slow.
  return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items):
  # Files go to the cores in this order; those of whole jobs take the longest.
  items.sort(key=lambda item: item.get_closest_marker('job') is None)


def pytest_unconfigure():
  if _SESSION_CACHE:
    shutil.rmtree(_SESSION_CACHE, ignore_errors=True)


@pytest.fixture(scope='session')
def finished(tmp_path_factory) -> pathlib.Path:
  """The workdir of `command_line.LONG`, run from end to end. Copy it."""
  workdir = tmp_path_factory.mktemp('finished') / 'run'
  done = command_line.run(*command_line.LONG, f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  return workdir


# An example's time says how busy the machine is: two files run side by side.
hypothesis.settings.register_profile('any_machine', deadline=None)
hypothesis.settings.load_profile('any_machine')
