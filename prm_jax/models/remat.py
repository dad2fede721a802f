"""Says what the backward pass finds kept where it computes a layer again.

`dots` keeps the results of linear maps, and of attention that a kernel or loop
of its own gradient computes: both take long, and little memory. They are known
by name, as a policy cannot see into functions with a gradient of their own.
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
