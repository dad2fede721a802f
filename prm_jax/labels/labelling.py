"""Defines a label source: a coroutine that labels one chain.

The coroutine yields requests to a policy or a judge, is sent the answers, and
returns the chain with its labels. `inference/driver.py` runs the coroutines of
many chains together and batches their requests. The labels of a chain depend
on that chain and the settings only, never on other chains.
"""

from collections.abc import Generator

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import Answers, Asked, Work

Labelling = Generator[Asked, Answers, Chain]


def as_work(labelling: Labelling) -> Work:
  """Wraps a labelling as the driver's work, which returns several chains."""
  chain = yield from labelling
  return (chain,)
