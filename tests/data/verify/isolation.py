"""Whether this machine can isolate a program, for tests that need a sandbox."""

import pytest

from prm_jax.data.verify import sandbox
from prm_jax.runtime.errors import UserError


def why_not_isolated() -> str:
  """Returns why this machine cannot isolate a program, or ''."""
  try:
    sandbox.run('')
  except UserError as error:
    return str(error)
  return ''


REFUSED = why_not_isolated()
needs_sandbox = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)
