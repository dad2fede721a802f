"""What the tests of the TPU compiler and of the GPU compiler share."""

import subprocess
import sys
from typing import Any

from configs import rl_math
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
