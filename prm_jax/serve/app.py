"""Makes the HTTP application: reads requests, answers them, refuses the rest.

    request -> body, bounded in size and time -> Protocol.chains, in a thread
      -> Gatherer.score -> Protocol.answer and JSON, in a thread

A request that cannot be answered gets an error of OpenAI's form with one line.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hmac
import logging
import threading
import time
from collections.abc import (
  AsyncIterator,
  Awaitable,
  Callable,
  Sequence,
)
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from prm_jax.serve import native, openr, openrlhf, page, sglang, vllm
from prm_jax.serve.faults import Refused, fault, http_error, refusal
from prm_jax.serve.gather import Gatherer, check_scored
from prm_jax.serve.observed import Observed
from prm_jax.serve.openapi import document
from prm_jax.serve.prms import Chain, ServedPrm
from prm_jax.serve.protocol import Body, Json, Protocol, Scored, parse
from prm_jax.serve.texts import Reading

GONE = 499  # as nginx counts clients that hang up; nobody reads the answer
LAST_SECONDS = 10.0  # for what is being scored when all else has ended


@dataclasses.dataclass(frozen=True)
class AppConfig:
  """Says what a client may ask, and how its text is read.

  Attributes:
    requests: most requests under way; further ones are refused.
    body_bytes: most bytes of a body.
    body_seconds: seconds in which a body has to arrive.
    bodies_bytes: most bytes of all bodies that are held.
    timeout: seconds in which a request has to be answered.
    keys: of clients; none lets everyone in.
    reading: how conversations are read by clients that want one number.
  """

  requests: int = 256
  body_bytes: int = 8 * 2**20
  body_seconds: float = 20.0
  bodies_bytes: int = 512 * 2**20
  timeout: float = 120.0
  keys: tuple[str, ...] = ()
  reading: Reading = Reading()


class Server:
  """Answers requests with the scores of some PRMs.

  Attributes:
    ready: whether the programs are compiled, so that a balancer may send
      requests here.
    broken: whether they could not be compiled, so that it should start again.
  """

  def __init__(
    self,
    prms: Sequence[ServedPrm],
    gatherer: Gatherer,
    observed: Observed,
    config: AppConfig,
  ) -> None:
    self.ready = self.broken = False
    self.closing = threading.Event()
    self._prms = {prm.name: prm for prm in prms}
    self._gatherer, self._observed = gatherer, observed
    self._config, self._under_way, self._held = config, 0, 0
    self._encoding = anyio.CapacityLimiter(4)
    self.protocols: list[Protocol] = [
      native.STEPS,
      *vllm.protocols(config.reading),
      sglang.SCORE,
      openrlhf.get_reward(config.reading),
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
      self._route('/get_worker_address', self._address),
      *(
        self._route(each.path, functools.partial(self._scores, each))
        for each in self.protocols
      ),
    ]
    return Starlette(
      routes=routes,
      lifespan=self._lifespan,
      exception_handlers={
        Refused: refusal,
        HTTPException: http_error,
        Exception: fault,
      },
    )

  @contextlib.asynccontextmanager
  async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
    yield
    # Nobody is connected any more, so nobody waits for what is being scored.
    await anyio.to_thread.run_sync(self._gatherer.close, LAST_SECONDS)

  def close(self, seconds: float) -> None:
    """Ends the thread of the devices, in so many seconds at most."""
    self.closing.set()
    self._gatherer.close(seconds)

  def _route(
    self, path: str, answer: Callable[[Request, Json], Awaitable[Response]]
  ) -> Route:
    """Returns the route of a POST request, which is counted and logged.

    Args:
      answer: answers a request, and adds what it did to a line of the log.
    """

    async def handle(request: Request) -> Response:
      began, told = time.monotonic(), {}
      try:
        response = await answer(request, told)
      except Refused as error:
        response = await refusal(request, error)
      except ClientDisconnect:
        response = Response(status_code=GONE)
      except Exception as error:
        logging.exception('%s: a fault of this server', path)
        response = await fault(request, error)
      seconds, status = time.monotonic() - began, response.status_code
      self._observed.answered(path, status, seconds)
      said = {'path': path, 'status': status, 'ms': round(1000 * seconds, 1)}
      logging.getLogger('prm_jax.serve').info('answered', extra=said | told)
      return response

    return Route(path, handle, methods=['POST'])

  async def _scores(
    self, protocol: Protocol, request: Request, told: Json
  ) -> Response:
    """Answers a request for scores."""
    began, config = time.monotonic(), self._config
    self._check_key(request)
    self._check_room()
    body, threads = bytearray(), []
    try:
      await self._receive(request, body)
      self._check_room()
      self._under_way += 1
      try:
        left = began + config.timeout - time.monotonic()
        return await self._while_connected(
          request, self._score(protocol, body, told, threads), left
        )
      finally:
        self._after(threads, self._end_request)
    finally:
      self._after(threads, functools.partial(self._release, len(body)))

  def _end_request(self) -> None:
    self._under_way -= 1

  def _release(self, count: int) -> None:
    """Counts a body as gone."""
    self._held -= count

  @staticmethod
  def _after(
    threads: Sequence[asyncio.Future], function: Callable[[], None]
  ) -> None:
    """Calls a function once no thread of a request works any longer."""
    left = [each for each in threads if not each.done()]
    if not left:
      function()
      return
    ended = asyncio.gather(*left, return_exceptions=True)
    ended.add_done_callback(lambda _: function())

  def _check_room(self) -> None:
    """Raises Refused if as many requests are under way as may be."""
    if self._under_way >= self._config.requests:
      self._observed.refused_for_the_queue()
      raise Refused(
        429, f'{self._under_way:,} requests are under way; ask again', wait=1
      )

  async def _score(
    self,
    protocol: Protocol,
    body: bytes | bytearray,
    told: Json,
    threads: list[asyncio.Future],
  ) -> Response:
    """Scores what a body asks for; all but the scores is made in threads.

    Args:
      threads: gets the work in threads, which may outlast the request.
    """

    async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
      # A thread goes on where its client hangs up, and so does its place.
      working = asyncio.ensure_future(
        anyio.to_thread.run_sync(function, *arguments, limiter=self._encoding)
      )
      threads.append(working)
      return await asyncio.shield(working)

    def read() -> tuple[Body, ServedPrm, Sequence[Chain | None]]:
      asked = parse(protocol.body, body)
      prm = self._choose(asked.model, protocol.names_prm)
      return asked, prm, protocol.chains(asked, prm)

    with self._gatherer.coming():
      asked, prm, chains = await in_thread(read)
    readable = [n for n, chain in enumerate(chains) if chain is not None]
    answers = await self._gatherer.score(prm, [chains[n] for n in readable])
    check_scored(answers, readable, prm.name)
    scored = Scored.of(prm, chains, answers)
    cached = scored.length - scored.read
    self._observed.read(prm.name, scored.read, cached)
    told.update(
      prm=prm.name, chains=len(chains), tokens=scored.read, cached=cached
    )
    if unread := sum(answer.unread for answer in answers):
      self._observed.wrote(prm.name, unread)
      told['unread_critiques'] = unread
    return await in_thread(lambda: JSONResponse(protocol.answer(asked, scored)))

  def _check_key(self, request: Request) -> None:
    """Raises Refused unless the request has one of the keys."""
    if not self._config.keys:
      return
    scheme, _, given = request.headers.get('authorization', '').partition(' ')
    # Starlette reads the bytes of a header as Latin-1.
    sent = given.encode('latin-1')
    known = [
      hmac.compare_digest(sent, key.encode()) for key in self._config.keys
    ]
    if scheme.lower() != 'bearer' or not any(known):
      raise Refused(401, 'expected a key: Authorization: Bearer KEY')

  async def _receive(self, request: Request, body: bytearray) -> None:
    """Appends what a client sends to `body`, and counts it as held.

    Raises:
      Refused: it is too large, too slow or compressed, or too many are held.
    """
    config, most = self._config, self._config.body_bytes
    large = Refused(413, f'a body above {most:,} bytes; send fewer chains')
    coding = request.headers.get('content-encoding', '').strip().lower()
    if coding not in ('', 'identity'):
      raise Refused(415, 'a compressed body; send it as it is')
    length = request.headers.get('content-length', '0')
    if length.isdecimal() and int(length[:20]) > most:
      raise large
    try:
      async with asyncio.timeout(config.body_seconds):
        async for piece in request.stream():
          body += piece
          self._held += len(piece)
          if len(body) > most:
            raise large
          if self._held > config.bodies_bytes:
            raise Refused(429, 'too many bodies are held; ask again', wait=1)
    except TimeoutError:
      raise Refused(
        408, f'the body took more than {config.body_seconds:g} seconds'
      ) from None

  def _choose(self, name: str | None, named: bool) -> ServedPrm:
    """Returns the PRM `name`; None will do if the server has only one.

    Args:
      named: whether clients name it; else the first one is meant.

    Raises:
      Refused: there is no such PRM.
    """
    if not named or (name is None and len(self._prms) == 1):
      return next(iter(self._prms.values()))
    if name not in self._prms:
      raise Refused(
        404, f'model {name!r}: expected one of {", ".join(self._prms)}', 'model'
      )
    return self._prms[name]

  async def _while_connected(
    self, request: Request, work: Awaitable[Any], seconds: float
  ) -> Any:
    """Returns the result, unless the client hangs up or time runs out."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
      await asyncio.wait(
        {working, gone},
        timeout=max(0.0, seconds),
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
    alive = self._gatherer.alive and not self.broken
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
        'fingerprint': prm.fingerprint,
        'owned_by': 'prm_jax',
        'max_model_len': prm.format.max_length,
      }
      for prm in self._prms.values()
    ]
    return JSONResponse({'object': 'list', 'data': data})

  async def _address(self, request: Request, told: Json) -> Response:
    """Answers as FastChat's controller: every model is here, or nowhere."""
    self._check_key(request)
    body = bytearray()
    try:
      await self._receive(request, body)
      asked = parse(Body, body)
    finally:
      self._held -= len(body)
    # A client that asks for values does not name the PRM: it gets the first.
    known = asked.model == next(iter(self._prms))
    told.update(prm=asked.model, known=known)
    address = str(request.base_url).rstrip('/') if known else ''
    return JSONResponse({'address': address})


async def _hung_up(request: Request) -> None:
  """Returns when the client has hung up."""
  while (await request.receive())['type'] != 'http.disconnect':
    pass
