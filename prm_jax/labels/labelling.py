"""What a label source is: a coroutine that labels one chain.

It yields what it wants a policy or a judge to say, is sent the answers, and
returns the chain with its labels. The driver runs many of them together, so
that what they ask at the same time is computed together. A source's labels
depend on its chain and its configuration only, never on other chains.
"""

from collections.abc import Generator

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import Answers, Asked, Work

Labelling = Generator[Asked, Answers, Chain]


def alone(labelling: Labelling) -> Work:
  """The work of labelling one chain."""
  chain = yield from labelling
  return (chain,)
