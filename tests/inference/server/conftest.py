"""A server that fails on demand, and a client that tries again soon."""

import pytest

from tests.shared.faulty_server import serving


@pytest.fixture
def server():
  with serving() as server:
    yield server


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
  """Spares the tests the client's waits, which begin at half a second."""
  base = pytest.importorskip('openai._base_client')
  monkeypatch.setattr(base, 'INITIAL_RETRY_DELAY', 0.01)
