"""`take_over` gives what `jit_unstack` does, and deletes the kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import decoding_params
from prm_jax.models.decoding_params import jit_unstack, parts_of, take_over
from tests.shared.tiny_sampling import MODEL, one_device, params_of


@pytest.mark.parametrize('part', [1, 4000, 64 << 20])
def test_they_are_the_same_in_parts(part, monkeypatch):
  monkeypatch.setattr(decoding_params, 'PART', part)
  mesh, params = one_device(), jax.tree.map(jnp.copy, params_of())
  with jax.set_mesh(mesh):
    expected = jit_unstack(params, MODEL, mesh)(params)
  wanted, form = jax.tree.flatten(jax.tree.map(np.array, expected))
  sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
  most = max(part, *sizes)
  of_parts = [
    sum(leaf.nbytes for leaf in jax.tree.leaves(each))
    for each in parts_of(params)
  ]
  assert sum(of_parts) == sum(sizes)
  assert max(of_parts) <= most
  assert len(of_parts) == 1 or part < sum(sizes)
  found = take_over(params, MODEL, mesh)
  leaves, found_form = jax.tree.flatten(found)
  assert found_form == form
  for leaf, other in zip(leaves, wanted, strict=True):
    assert leaf.dtype == other.dtype
    np.testing.assert_array_equal(leaf, other)
  kernels = [x for x in jax.tree.leaves(params['layers']) if x.ndim > 2]
  assert all(kernel.is_deleted() for kernel in kernels)
  assert sum(x.nbytes for x in kernels) > 0.8 * sum(sizes)
