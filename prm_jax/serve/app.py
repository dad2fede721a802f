"""Makes the HTTP application: reads requests, answers them, refuses the rest.

    request -> body, bounded in size and time -> Protocol.chains, in a thread
      -> Gatherer.score -> Protocol.answer -> JSON

A request that cannot be answered gets an error of OpenAI's form with one line.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import anyio
import pydantic
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from prm_jax.serve import native, openr, openrlhf, page, sglang, vllm
from prm_jax.serve.faults import Refused
from prm_jax.serve.gather import Gatherer, check_finite
from prm_jax.serve.observed import Observed
from prm_jax.serve.openapi import document
from prm_jax.serve.prms import ServedPrm
from prm_jax.serve.protocol import Body, Json, Protocol, Scored

GONE = 499  # as nginx counts clients that hang up; nobody reads the answer
OPEN = ('/health', '/ready')  # paths that need no key


@dataclasses.dataclass(frozen=True)
class AppConfig:
  """Says what a client may ask, and how its text is read.

  Attributes:
    requests: most requests under way; further ones are refused.
    body_bytes: most bytes of a body.
    body_seconds: seconds in which a body has to arrive.
    timeout: seconds in which a request has to be answered.
    keys: of clients; none lets everyone in.
    separator: text between the steps of an answer without separators.
    aggregate: how scores of steps become one, for clients that read one.
  """

  requests: int = 256
  body_bytes: int = 8 * 2**20
  body_seconds: float = 20.0
  timeout: float = 120.0
  keys: tuple[str, ...] = ()
  separator: str = '\n\n'
  aggregate: str = 'min'


class Server:
  """Answers requests with the scores of some PRMs.

  Attributes:
    ready: whether the programs are compiled, so that a balancer may send
      requests here.
  """

  def __init__(
    self,
    prms: Sequence[ServedPrm],
    gatherer: Gatherer,
    observed: Observed,
    config: AppConfig,
  ) -> None:
    self.ready = False
    self._prms = {prm.name: prm for prm in prms}
    self._gatherer, self._observed = gatherer, observed
    self._config, self._under_way = config, 0
    self._encoding = anyio.CapacityLimiter(4)
    self.protocols: list[Protocol] = [
      native.STEPS,
      *vllm.protocols(config.separator, config.aggregate),
      sglang.SCORE,
      openrlhf.get_reward(config.separator, config.aggregate),
      openr.VALUE,
    ]

  def app(self) -> Starlette:
    """Returns the application."""
    routes = [
      Route('/', self._page),
      Route('/health', self._health),
      Route('/ready', self._ready),
      Route('/metrics', self._metrics),
      Route('/openapi.json', self._openapi),
      Route('/v1/models', self._models),
      Route('/get_worker_address', self._address, methods=['POST']),
      *(
        Route(each.path, self._answering(each), methods=['POST'])
        for each in self.protocols
      ),
    ]
    return Starlette(
      routes=routes,
      lifespan=self._lifespan,
      exception_handlers={
        Refused: refusal,
        HTTPException: _http_error,
        Exception: _fault,
      },
    )

  @contextlib.asynccontextmanager
  async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
    yield
    await anyio.to_thread.run_sync(self._gatherer.close)

  def _answering(self, protocol: Protocol) -> Any:
    """Returns the handler of a protocol."""

    async def handle(request: Request) -> Response:
      began, told = time.monotonic(), {}
      try:
        response = await self._handle(request, protocol, told)
      except Refused as error:
        response = await refusal(request, error)
      except ClientDisconnect:
        response = Response(status_code=GONE)
      seconds = time.monotonic() - began
      status = response.status_code
      self._observed.answered(protocol.path, status, seconds)
      said = {'path': protocol.path, 'status': status}
      _log(said | {'ms': round(1000 * seconds, 1)} | told)
      return response

    return handle

  async def _handle(
    self, request: Request, protocol: Protocol, told: Json
  ) -> Response:
    """Answers a request; adds what it read to `told`."""
    config = self._config
    self._check_key(request)
    if self._under_way >= config.requests:
      self._observed.refused_for_the_queue()
      raise Refused(
        429, f'{self._under_way:,} requests are under way; ask again', wait=1
      )
    self._under_way += 1
    try:
      asked = parse(protocol.body, await self._body(request))
      prm = self._choose(asked.model)
      chains = await anyio.to_thread.run_sync(
        protocol.chains, asked, prm, limiter=self._encoding
      )
      answers = await self._while_connected(
        request, self._gatherer.score(prm, chains)
      )
    finally:
      self._under_way -= 1
    check_finite(answers, prm.name)
    scored = Scored.of(prm, chains, answers)
    cached = scored.length - scored.read
    self._observed.read(prm.name, scored.read, cached)
    told.update(
      prm=prm.name, chains=len(chains), tokens=scored.read, cached=cached
    )
    return JSONResponse(protocol.answer(asked, scored))

  def _check_key(self, request: Request) -> None:
    """Raises Refused unless the request has one of the keys."""
    if not self._config.keys:
      return
    given = request.headers.get('authorization', '').removeprefix('Bearer ')
    known = [
      hmac.compare_digest(given.encode(), key.encode())
      for key in self._config.keys
    ]
    if not any(known):
      raise Refused(401, 'expected a key: Authorization: Bearer KEY')

  async def _body(self, request: Request) -> bytes:
    """Returns the body.

    Raises:
      Refused: it is too large, too slow, or compressed.
    """
    config, most = self._config, self._config.body_bytes
    large = Refused(413, f'a body above {most:,} bytes; send fewer chains')
    if request.headers.get('content-encoding', 'identity') != 'identity':
      raise Refused(415, 'a compressed body; send it as it is')
    length = request.headers.get('content-length', '0')
    if length.isdecimal() and int(length[:20]) > most:
      raise large
    body = bytearray()
    try:
      async with asyncio.timeout(config.body_seconds):
        async for piece in request.stream():
          body += piece
          if len(body) > most:
            raise large
    except TimeoutError:
      raise Refused(
        408, f'the body took more than {config.body_seconds:g} seconds'
      ) from None
    return bytes(body)

  def _choose(self, name: str | None) -> ServedPrm:
    """Returns the PRM of a name, which one may be left out where there is one.

    Raises:
      Refused: there is no such PRM.
    """
    if name is None and len(self._prms) == 1:
      return next(iter(self._prms.values()))
    if name not in self._prms:
      raise Refused(
        404, f'model {name!r}: expected one of {", ".join(self._prms)}', 'model'
      )
    return self._prms[name]

  async def _while_connected(
    self, request: Request, work: Awaitable[Any]
  ) -> Any:
    """Returns the result, unless the client hangs up or time runs out."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
      await asyncio.wait(
        {working, gone},
        timeout=self._config.timeout,
        return_when=asyncio.FIRST_COMPLETED,
      )
      if working.done():
        return working.result()
      if gone.done():
        raise ClientDisconnect
      raise Refused(
        503,
        f'not answered within {self._config.timeout:g} seconds; ask again, or '
        'for fewer chains',
        wait=5,
      )
    finally:
      working.cancel()
      gone.cancel()

  async def _page(self, request: Request) -> Response:
    return HTMLResponse(page.html(list(self._prms)))

  async def _health(self, request: Request) -> Response:
    alive = self._gatherer.alive
    return JSONResponse({'alive': alive}, 200 if alive else 503)

  async def _ready(self, request: Request) -> Response:
    ready = self.ready and self._gatherer.alive
    return JSONResponse({'ready': ready}, 200 if ready else 503)

  async def _metrics(self, request: Request) -> Response:
    self._check_key(request)
    return Response(
      self._observed.text(), media_type='text/plain; version=0.0.4'
    )

  async def _openapi(self, request: Request) -> Response:
    return JSONResponse(document(self.protocols))

  async def _models(self, request: Request) -> Response:
    self._check_key(request)
    data = [
      {
        'id': prm.name,
        'object': 'model',
        'owned_by': 'prm_jax',
        'max_model_len': prm.format.max_length,
      }
      for prm in self._prms.values()
    ]
    return JSONResponse({'object': 'list', 'data': data})

  async def _address(self, request: Request) -> Response:
    """Answers as FastChat's controller: every model is here, or nowhere."""
    self._check_key(request)
    asked = parse(Body, await self._body(request))
    known = asked.model in self._prms
    address = str(request.base_url).rstrip('/') if known else ''
    return JSONResponse({'address': address})


async def _hung_up(request: Request) -> None:
  """Returns when the client has hung up."""
  while (await request.receive())['type'] != 'http.disconnect':
    pass


def parse(kind: type[Body], body: bytes) -> Any:
  """Returns the body of a request.

  Raises:
    Refused: it is no JSON, or not of this form.
  """

  def refuse(constant: str) -> None:
    raise ValueError(f'{constant} is no JSON')

  try:
    value = json.loads(body, parse_constant=refuse)
  except (ValueError, RecursionError) as error:
    raise Refused(400, f'the body is no JSON ({error})') from None
  try:
    return kind.model_validate(value)
  except pydantic.ValidationError as error:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ''.join(
      f'[{part}]' if isinstance(part, int) else f'.{part}'
      for part in first['loc']
    ).lstrip('.')
    raise Refused(400, f'{where or "body"}: {first["msg"]}', where) from None


async def refusal(request: Request, error: Exception) -> Response:
  """Makes the answer to a request that is refused, in OpenAI's form."""
  assert isinstance(error, Refused)
  kind = 'invalid_request_error' if error.status < 429 else 'server_busy'
  headers = {'Retry-After': str(error.wait)} if error.wait else None
  return _error(error.status, error.message, kind, error.field, headers)


async def _http_error(request: Request, error: Exception) -> Response:
  assert isinstance(error, HTTPException)
  said = f'{request.method} {request.url.path}: {error.detail}'
  kind = 'invalid_request_error'
  return _error(error.status_code, said, kind, '', error.headers)


async def _fault(request: Request, error: Exception) -> Response:
  """Answers a request that met a fault of ours; the log has the traceback."""
  said = f'a fault of this server ({type(error).__name__}); its log has more'
  return _error(503, said, 'server_error', '', None)


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


def _log(values: Mapping[str, Any]) -> None:
  logging.getLogger('prm_jax.serve').info(json.dumps(values))
