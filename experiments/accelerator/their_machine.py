"""PyTorch's side of the machine: its versions, and what it reaches at most."""

import torch
import transformers

from experiments.accelerator import cases
from experiments.accelerator.their_models import DEVICE, seconds_of

CALLS = 20


def about() -> dict:
  """Describes the versions."""
  name = torch.cuda.get_device_name() if DEVICE == 'cuda' else 'cpu'
  return {
    'device': name,
    'versions': {
      'torch': torch.__version__,
      'transformers': transformers.__version__,
    },
  }


def product(size: int) -> dict:
  """Measures a bfloat16 product of two square matrices of random numbers."""
  torch.manual_seed(0)
  a, b = torch.randn(2, size, size, device=DEVICE, dtype=torch.bfloat16)
  _, *seconds = [seconds_of(torch.matmul, a, b) for _ in range(CALLS + 1)]
  return {'flops_per_second': 2 * size**3 / min(seconds), 'size': size}


def main() -> None:
  setup = cases.read_arguments()
  size = 256 if setup.tiny else 8192
  cases.run(setup, {'about': about, 'product': lambda: product(size)})


if __name__ == '__main__':
  main()
