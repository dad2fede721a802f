"""Counts what a server does, for Prometheus.

handlers and gather.py -> Observed -> GET /metrics
"""

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Observed:
  """Holds the numbers of one server."""

  def __init__(self, tokens_of_a_call: int) -> None:
    self.registry, self._most = CollectorRegistry(), tokens_of_a_call
    self._requests = Counter(
      'prm_jax_requests',
      'Requests that were answered.',
      ('path', 'status'),
      registry=self.registry,
    )
    self._latency = Histogram(
      'prm_jax_request_seconds',
      'Time from the head of a request to its answer.',
      ('path',),
      buckets=SECONDS,
      registry=self.registry,
    )
    self._tokens = Counter(
      'prm_jax_tokens',
      'Tokens of scored chains: read by the PRM, or cached.',
      ('prm', 'how'),
      registry=self.registry,
    )
    self._unread = Counter(
      'prm_jax_unread_critiques',
      'Critiques without a readable verdict; each counts as 0.5.',
      ('prm',),
      registry=self.registry,
    )
    self._queue = Gauge(
      'prm_jax_queue', 'Requests that wait.', registry=self.registry
    )
    self._full = Counter(
      'prm_jax_queue_full',
      'Requests refused because the queue was full.',
      registry=self.registry,
    )
    self._calls = Histogram(
      'prm_jax_call_seconds',
      'Time of a call of a PRM.',
      ('prm',),
      buckets=SECONDS,
      registry=self.registry,
    )
    self._gathered = Histogram(
      'prm_jax_call_requests',
      'Requests that a call of a PRM answers.',
      ('prm',),
      buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
      registry=self.registry,
    )
    self._fill = Histogram(
      'prm_jax_call_fill',
      'Tokens of a call, as a share of the most that it takes.',
      ('prm',),
      buckets=SHARES,
      registry=self.registry,
    )

  def answered(self, path: str, status: int, seconds: float) -> None:
    """Counts a request; `path` is one of the server's own."""
    self._requests.labels(path, str(status)).inc()
    self._latency.labels(path).observe(seconds)

  def read(self, prm: str, tokens: int, cached: int) -> None:
    """Counts the tokens of an answer."""
    self._tokens.labels(prm, 'read').inc(tokens)
    self._tokens.labels(prm, 'cached').inc(cached)

  def wrote(self, prm: str, unread: int) -> None:
    """Counts the critiques of an answer that say nothing."""
    self._unread.labels(prm).inc(unread)

  def queued(self, requests: int) -> None:
    """Shows how many requests wait."""
    self._queue.set(requests)

  def refused_for_the_queue(self) -> None:
    """Counts a request that found the queue full."""
    self._full.inc()

  def called(
    self, prm: str, requests: int, tokens: int, seconds: float
  ) -> None:
    """Counts a call of a PRM."""
    self._calls.labels(prm).observe(seconds)
    self._gathered.labels(prm).observe(requests)
    self._fill.labels(prm).observe(min(1.0, tokens / self._most))

  def text(self) -> bytes:
    """Returns the numbers in Prometheus' text form."""
    return prometheus_client.generate_latest(self.registry)
