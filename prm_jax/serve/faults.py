"""Defines what a client is told when it gets no scores."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class Refused(Exception):
  """Says why a request gets no scores: an HTTP status, and one line.

  Attributes:
    status: 4xx or 503.
    message: what is wrong, and what cures it.
    field: the part of the body that is at fault, '' if none is.
    wait: seconds after which the client may ask again; 0 if that is no use.
  """

  def __init__(
    self, status: int, message: str, field: str = '', wait: int = 0
  ) -> None:
    super().__init__(message)
    self.status, self.message = status, ' '.join(message.split())
    self.field, self.wait = field, wait


async def refusal(request: Request, error: Exception) -> Response:
  """Makes the answer to a request that is refused, in OpenAI's form."""
  assert isinstance(error, Refused)
  kind = 'invalid_request_error' if error.status < 429 else 'server_busy'
  headers = {'Retry-After': str(error.wait)} if error.wait else None
  return _error(error.status, error.message, kind, error.field, headers)


async def http_error(request: Request, error: Exception) -> Response:
  """Makes the answer to a path or method that does not exist."""
  assert isinstance(error, HTTPException)
  said = f'{request.method} {request.url.path}: {error.detail}'
  kind = 'invalid_request_error'
  return _error(error.status_code, said, kind, '', error.headers)


async def fault(request: Request, error: Exception) -> Response:
  """Answers a request that met a fault of ours; the log has the traceback."""
  said = f'a fault of this server ({type(error).__name__}); its log has more'
  return _error(503, said, 'server_error', '', {'Retry-After': '5'})


def _error(
  status: int,
  message: str,
  kind: str,
  field: str,
  headers: Mapping[str, str] | None,
) -> Response:
  # What a client sent may hold what UTF-8 cannot.
  message = message.encode('utf-8', 'replace').decode()
  body = {
    'message': message[:500],
    'type': kind,
    'param': field.encode('utf-8', 'replace').decode() or None,
    'code': status,
  }
  return JSONResponse({'error': body}, status, headers)
