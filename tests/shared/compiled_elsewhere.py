"""What the tests of programs for TPUs and of those for GPUs share."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from configs import rl_math
from prm_jax.aot.hlo import read_program
from prm_jax.aot.work import Count, count_work
from tests.shared.command_line import ROOT


def run_aot(*args: str) -> subprocess.CompletedProcess:
  """Runs `python -m prm_jax.aot` with these arguments."""
  return subprocess.run(
    [sys.executable, '-m', 'prm_jax.aot', *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def small_rl(variants: str = '', **aot_config: Any) -> dict[str, Any]:
  """Returns an RL config of one layer, on whatever devices."""
  variants = f'{variants},' * bool(variants) + 'qwen2_5_math_7b,tiny'
  config = rl_math.get_config(variants).to_dict()
  config['aot']['model']['n_layers'] = 1
  config['aot'] |= aot_config
  return config


def work_of(lines: Sequence[str], more: str = '', devices: int = 256) -> Count:
  """Counts the work of a program's text.

  Args:
    lines: the instructions of its entry; more: other computations.
  """
  body = '\n'.join(f'  {line}' for line in lines)
  text = f'{more}\n\nENTRY %main () -> f32[] {{\n{body}\n}}\n'
  return count_work(read_program(text), devices)
