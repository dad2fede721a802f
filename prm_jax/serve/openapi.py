"""Describes the server's protocols as an OpenAPI document."""

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from prm_jax.serve.protocol import Protocol

Json = dict[str, Any]
ERROR: Json = {
  'type': 'object',
  'properties': {
    'error': {
      'type': 'object',
      'properties': {
        'message': {'type': 'string'},
        'type': {'type': 'string'},
        'param': {'type': ['string', 'null']},
        'code': {'type': 'integer'},
      },
    }
  },
}
# What each status of a refusal says.
REFUSALS = {
  '400': 'The body is no JSON, or not of this form, or cannot be scored.',
  '401': 'The key is missing or unknown.',
  '404': 'There is no PRM of this name.',
  '408': 'The body took too long.',
  '413': 'The body is too large, or the PRM cannot read so much at a time.',
  '415': 'The body is compressed.',
  '422': 'A score is not finite.',
  '429': 'Too many requests are under way; Retry-After says when to ask again.',
  '503': 'The server stops, or the request took too long.',
}


def document(protocols: Sequence[Protocol]) -> Json:
  """Returns the document."""
  bodies = [(each.body, 'validation') for each in protocols]
  _, schemas = models_json_schema(
    bodies, ref_template='#/components/schemas/{model}'
  )
  refused = {
    status: {
      'description': about,
      'content': {
        'application/json': {'schema': {'$ref': '#/components/schemas/Error'}}
      },
    }
    for status, about in REFUSALS.items()
  }
  return {
    'openapi': '3.1.0',
    'info': {'title': 'prm_jax', 'version': '1'},
    'paths': {
      each.path: {
        'post': {
          'summary': each.about,
          'operationId': each.path.strip('/').replace('/', '_'),
          'requestBody': {
            'required': True,
            'content': {
              'application/json': {
                'schema': {'$ref': f'#/components/schemas/{each.body.__name__}'}
              }
            },
          },
          'responses': {
            '200': {
              'description': 'The scores.',
              'content': {'application/json': {'schema': {'type': 'object'}}},
            }
          }
          | refused,
        }
      }
      for each in protocols
    },
    'components': {'schemas': schemas.get('$defs', {}) | {'Error': ERROR}},
  }
