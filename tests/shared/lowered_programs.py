"""Runs jobs on the CPU and lowers their programs for GPUs and TPUs, too.

    python -m tests.shared.lowered_programs OUTPUT < COMMAND_LINES
    python -m tests.shared.lowered_programs OUTPUT WORKDIR

Every function that prm_jax jits is lowered for PLATFORMS with the arguments of
each call, before the call runs. So a primitive that only the CPU has shows
without a GPU. OUTPUT gets one line of JSON for each program, shapes and
platform, see `Lowered`. The first form takes the command lines of
`forked_command_lines.py` and answers as it does; the second loads the PRM of a
workdir and scores with it.
"""

import functools
import importlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.core import Tracer

PLATFORMS = 'cuda', 'tpu'
_jit = jax.jit


class Lowered(NamedTuple):
  """Says how a program was lowered.

  Attributes:
    name: the function's.
    module: where it was jitted.
    shapes: of its arguments.
    error: '' if it lowered.
  """

  name: str
  module: str
  platform: str
  shapes: str
  error: str


def try_to_lower(jitted: Any, platform: str, *args: Any, **kwargs: Any) -> str:
  """Lowers a jitted function for a platform; returns the error or ''."""
  try:
    jitted.trace(*args, **kwargs).lower(lowering_platforms=(platform,))
  except Exception as error:  # whatever it is, the test shows it
    return f'{type(error).__name__}: {error}'
  return ''


class LoweringJit:
  """Stands for `jax.jit`; what prm_jax jits is lowered where it is called.

  Args:
    output: a file that several processes append to.
  """

  def __init__(self, output: str) -> None:
    self._output = output
    self._seen: set[Any] = set()

  def __call__(self, function: Callable, **options: Any) -> Any:
    jitted = _jit(function, **options)
    module = sys._getframe(1).f_globals['__name__']
    if module.split('.')[0] != 'prm_jax':
      return jitted

    @functools.wraps(jitted)
    def call(*args: Any, **kwargs: Any) -> Any:
      self._lower(function, module, jitted, args, kwargs)
      return jitted(*args, **kwargs)

    def lower(*args: Any, **kwargs: Any) -> Any:  # of who compiles ahead
      self._lower(function, module, jitted, args, kwargs)
      return jitted.lower(*args, **kwargs)

    call.lower = lower
    return call

  def _lower(
    self, function: Callable, module: str, jitted: Any, args: Any, kwargs: Any
  ) -> None:
    leaves = jax.tree.leaves((args, kwargs))
    shapes = ' '.join(map(_describe, leaves))
    # What is called inside of another program is a part of that one.
    inside = any(isinstance(leaf, Tracer) for leaf in leaves)
    if inside or (function, shapes) in self._seen:
      return
    self._seen.add((function, shapes))
    while isinstance(function, functools.partial):
      function = function.func
    for platform in PLATFORMS:
      error = try_to_lower(jitted, platform, *args, **kwargs)
      lowered = Lowered(function.__name__, module, platform, shapes, error)
      with open(self._output, 'a') as file:
        file.write(json.dumps(lowered) + '\n')  # whole, as it is short


def _describe(leaf: Any) -> str:
  shaped = hasattr(leaf, 'shape')
  return f'{leaf.dtype}{list(leaf.shape)}' if shaped else repr(leaf)


def read(output: pathlib.Path) -> list[Lowered]:
  """Returns what OUTPUT says."""
  lines = output.read_text().splitlines()
  return [Lowered(*json.loads(line)) for line in lines]


def score_chains(workdir: str) -> None:
  """Scores chains as a user of a trained PRM does."""
  # Not before `jax.jit` is replaced.
  prm = importlib.import_module('prm_jax').load(workdir)
  prm.score('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])
  chains = [['7 * 3 = 1', f'1 + 4 = {i}'] for i in range(4)]
  prm.best_of_n('mod 10 : 7 * 3 + 4', chains)


if __name__ == '__main__':
  jax.jit = LoweringJit(sys.argv[1])
  if len(sys.argv) > 2:
    score_chains(sys.argv[2])
  else:
    commands = importlib.import_module('tests.shared.forked_command_lines')
    commands.answer_stdin()
