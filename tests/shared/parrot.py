"""Asks a `FaultyServer` two problems, by which its faults tell them apart."""

from prm_jax.inference.protocols import Request
from prm_jax.inference.server.endpoint import Endpoint, EndpointConfig

GOOD, BAD = Request('good', (), 'good', 1), Request('bad', (), 'bad', 1)


def endpoint_for(server, cache=None, log=None, **changes):
  """An endpoint that gives up at the third attempt."""
  values = {
    'base_url': server.url,
    'model': 'parrot',
    'system': '',
    'attempts': 3,
  }
  return Endpoint(EndpointConfig(**values | changes), cache, log)


def problem_of(body):
  return body['messages'][0]['content']
