"""Says which results remat keeps for the backward pass.

`dots` keeps the results of linear maps, and of attention by a kernel or loop
with its own gradient: both take long to compute and little memory to keep. They
have names, as a policy cannot see into functions with their own gradient.
"""

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

PROJECTION, ATTENTION = 'projection', 'attention'
# JAX's own function around cuDNN has no name; this is in its primitives'.
_CUDNN = 'dot_product_attention_fwd'
_by_name = jax.checkpoint_policies.save_only_these_names(PROJECTION, ATTENTION)


def named(name: str, *arrays: jax.Array) -> tuple[jax.Array, ...]:
  """Returns the arrays, with a name that `keep_products` knows."""
  return tuple(checkpoint_name(x, name) for x in arrays)


def keep_products(primitive: Any, *args: Any, **params: Any) -> bool:
  """Is the policy of remat='dots'."""
  return _CUDNN in primitive.name or _by_name(primitive, *args, **params)
