"""Adds up gradients as another platform does, on the devices that there are."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from prm_jax.models import layers, take


@contextlib.contextmanager
def as_on(platform: str) -> Iterator[None]:
  """Lets what is traced meanwhile add up as on 'cpu' or 'gpu'."""
  with contextlib.ExitStack() as stack:
    for module in (layers, take):
      stack.enter_context(
        mock.patch.object(module, 'platform', lambda: platform)
      )
    yield
