"""Asks a server of PRMs: many clients at a time, or at a given rate.

Everything ends by itself: after a number of requests, or a number of seconds.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import httpx2
import numpy as np

Chain = tuple[str, list[str]]  # problem and steps
Request = list[Chain]
FIRST = 100_000  # numbers of as many digits have as many tokens


class Reply(NamedTuple):
  """Holds what came of a request: its status, and how long it took."""

  status: int
  seconds: float


async def ask(
  client: httpx2.AsyncClient, request: Request
) -> tuple[Reply, dict[str, Any]]:
  """Sends one request; the status is 0 where there is no answer."""
  chains = [{'problem': problem, 'steps': steps} for problem, steps in request]
  began = time.perf_counter()
  try:
    reply = await client.post('/v1/steps', json={'chains': chains})
  except httpx2.TransportError:
    return Reply(0, time.perf_counter() - began), {}
  taken = time.perf_counter() - began
  return Reply(reply.status_code, taken), reply.json()


def open_client(url: str, connections: int) -> httpx2.AsyncClient:
  """Opens a client with so many connections."""
  limits = httpx2.Limits(
    max_connections=connections, max_keepalive_connections=connections
  )
  return httpx2.AsyncClient(base_url=url, limits=limits, timeout=60.0)


async def together(
  url: str, requests: Sequence[Request], clients: int
) -> float:
  """Returns the seconds in which so many clients get all answers."""
  left = iter(requests)

  async def work(client: httpx2.AsyncClient) -> None:
    for request in left:
      reply, _ = await ask(client, request)
      if reply.status != 200:
        raise SystemExit(f'error: status {reply.status}')

  async with open_client(url, clients) as client:
    began = time.perf_counter()
    await asyncio.gather(*(work(client) for _ in range(clients)))
    return time.perf_counter() - began


async def at_rate(
  url: str,
  requests: Iterator[Request],
  rate: float,
  seconds: float,
  seed: int,
) -> list[Reply]:
  """Sends requests at random times, whether earlier ones are answered or not.

  Args:
    rate: requests a second, on average.
  """
  rng, replies = np.random.default_rng(seed), []

  async def one(client: httpx2.AsyncClient, request: Request) -> None:
    reply, _ = await ask(client, request)
    replies.append(reply)

  async with open_client(url, 2048) as client, asyncio.TaskGroup() as group:
    began, at = time.perf_counter(), 0.0
    while at < seconds:
      await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
      group.create_task(one(client, next(requests)))
      at += rng.exponential(1 / rate)
  return replies


def numbered(requests: Sequence[Request]) -> Iterator[Request]:
  """Yields requests that no cache has seen: each problem has a number."""
  for number, request in zip(itertools.count(FIRST), itertools.cycle(requests)):
    yield [(f'{number}. {problem}', steps) for problem, steps in request]
