"""Serves PRMs over HTTP.

    python -m prm_jax.serve --prm /tmp/prm_math --port 8000
    curl localhost:8000/v1/steps -d '{"chains": [{"problem":
      "mod 10 : 7 * 3 + 4", "steps": ["7 * 3 = 1", "1 + 4 = 5"]}]}'

--prm is the workdir of a PRM or of a critic that was trained here, the folder
of a published PRM, or hf://owner/name; NAME=PATH names it to clients. A chain
that grew since it was last scored costs its new steps only. Besides its own
protocol the server speaks those of vLLM, SGLang, OpenRLHF and openr, see
docs/serving.md. It stops on SIGTERM when all requests under way are answered.
"""

import argparse
import asyncio
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

import jax

from prm_jax.inference import loading
from prm_jax.inference.call_sizes import coarse_grid
from prm_jax.inference.published import shown_style
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.jobs.critics import learned_style
from prm_jax.main import (
  DONE,
  end,
  end_for,
  mind_unraisable,
  prepare_jax,
  stop_at_once,
  stop_behind,
)
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.chat_template import chat_renderer
from prm_jax.models.hub.safetensors_files import HUB, TensorFiles, resolve
from prm_jax.models.prefix_store import rows_that_fit
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import check_heads, make_mesh
from prm_jax.runtime.stopping import Stopped

try:
  import uvicorn

  from prm_jax.serve.app import LAST_SECONDS, AppConfig, Server
  from prm_jax.serve.connections import BoundedProtocol
  from prm_jax.serve.critics import open_critic
  from prm_jax.serve.faults import Refused
  from prm_jax.serve.flags import make_parser, read_keys
  from prm_jax.serve.followers import dismiss, follow
  from prm_jax.serve.gather import GatherConfig, Gatherer
  from prm_jax.serve.observed import Observed
  from prm_jax.serve.prms import ServedPrm
  from prm_jax.serve.texts import Reading
  from prm_jax.serve.warm import warm
except ModuleNotFoundError as error:
  print(
    f"error: serving needs the package {error.name}: pip install -e '.[serve]'",
    file=sys.stderr,
  )
  sys.exit(2)

OWN = {*logging.makeLogRecord({}).__dict__, 'message', 'asctime'}


class JsonLines(logging.Formatter):
  """Writes a record as a line of JSON, with what it has of its own."""

  def format(self, record: logging.LogRecord) -> str:
    line = {
      'time': self.formatTime(record),
      'level': record.levelname,
      'message': record.getMessage(),
    }
    own = {k: v for k, v in record.__dict__.items() if k not in OWN}
    if record.exc_info:
      own['traceback'] = self.formatException(record.exc_info)
    return json.dumps(line | own, default=str)


def count_heads(path: str, is_run: bool) -> int:
  """Returns the number of query heads of a PRM that is not open yet."""
  if is_run:
    return loading.read_description(paths.open_path(path)).model.n_heads
  model, _ = read_architecture(resolve(path))
  return model.n_heads


def open_prm(name: str, path: str, given: argparse.Namespace) -> ServedPrm:
  """Opens a PRM, with its chat template if it has one."""
  if jax.device_count() % given.model:
    raise UserError(
      f'--model={given.model}: expected a divisor of the number of devices, '
      f'which is {jax.device_count()}'
    )
  mesh = make_mesh({'replica': 1, 'fsdp': -1, 'model': given.model})
  is_run = not path.startswith(HUB) and loading.is_run(paths.open_path(path))
  if given.model > 1:
    check_heads(count_heads(path, is_run), mesh, '--model')
  if is_run and (style := learned_style(path)):
    return open_critic(name, path, style, given.critiques, given.dtype, mesh)
  style = given.style
  if style and (is_run or shown_style(TensorFiles(resolve(path)))):
    logging.info('%s shows how it scores steps; --style is not used', name)
    style = ''
  scorer = loading.load(path, style=style, mesh=mesh, dtype=given.dtype)
  render = None
  if not is_run:
    try:
      render = chat_renderer(resolve(path))
    except UserError:
      logging.info('%s has no chat template, so it reads no messages', name)
  rows, share = given.rows, 0.5 / len(given.prms)
  if rows is None:
    longest = scorer.format.max_length
    fits = rows_that_fit(scorer.model, scorer.mesh, longest, share)
    # As many in all processes, which keep the same.
    fewest = min(map(int, processes.exchange(f'rows of {name}', str(fits))))
    rows = max(1, min(1024, fewest))
  tree = TreeScorer(scorer, rows, name, '--rows', coarse_grid, share)
  return ServedPrm(name, tree, scorer.format, scorer.name, render)


def open_prms(given: argparse.Namespace) -> list[ServedPrm]:
  """Opens all PRMs, in each process."""
  names = [name for name, _ in given.prms]
  if len({*names}) < len(names):
    raise UserError('--prm: two PRMs have the same name; give NAME=PATH')
  return [open_prm(name, path, given) for name, path in given.prms]


def check_same_flags(given: argparse.Namespace) -> None:
  """Raises UserError if a process was started with other flags."""
  own = {'coordinator', 'process', 'host', 'port', 'keys'}
  flags = {k: v for k, v in sorted(vars(given).items()) if k not in own}
  processes.check_same(
    'the command line', repr(flags), 'start all processes with the same flags'
  )


def follow_first(given: argparse.Namespace) -> None:
  """Reads what process 0 is asked, until it ends."""
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)  # process 0 says when to end
  prms = open_prms(given)
  if given.warm:
    for prm in prms:
      warm(prm)
  follow({prm.name: prm.scorer for prm in prms})


def open_server(given: argparse.Namespace) -> Server:
  """Opens the PRMs, and gets them ready in a thread of its own."""
  keys = read_keys(given.keys)
  prms = open_prms(given)
  gathering = GatherConfig(wait=given.wait_ms / 1000)
  observed = Observed(gathering.tokens)
  gatherer = Gatherer(gathering, observed)
  config = AppConfig(
    requests=given.requests,
    body_bytes=given.body_bytes,
    timeout=given.timeout,
    keys=keys,
    reading=Reading(given.separator, given.aggregate, given.unread),
  )
  server = Server(prms, gatherer, observed, config)

  def get_ready() -> None:
    try:
      if given.warm:
        for prm in prms:
          warm(prm, server.closing)
    except Exception as error:
      # /health says so, and whoever watches it starts the server again.
      logging.error('the programs cannot be compiled: %s', error)
      server.broken = True
      return
    if server.closing.is_set():
      return
    server.ready = True
    logging.info('ready: %s', ', '.join(prm.name for prm in prms))

  threading.Thread(target=get_ready, daemon=True).start()
  return server


async def bind(host: str, port: int) -> list[socket.socket]:
  """Returns a socket for each address of the host, which does not listen."""
  loop = asyncio.get_running_loop()
  server = await loop.create_server(
    asyncio.Protocol, host, port, start_serving=False
  )
  sockets = [each.dup() for each in server.sockets]
  server.close()
  return sockets


def cannot_listen(given: argparse.Namespace, error: Exception) -> UserError:
  """Returns the error of a port that another program has, and the like."""
  reason = getattr(error, 'strerror', None) or error
  return UserError(
    f'--host={given.host} --port={given.port}: {reason}; choose another'
  )


def serve(given: argparse.Namespace) -> None:
  """Answers until a signal ends it."""
  try:  # before the PRMs are opened, which takes long
    sockets = asyncio.run(bind(given.host, given.port))
  except (OSError, UnicodeError) as error:
    raise cannot_listen(given, error) from None
  server = open_server(given)
  # A request may take all of its time from the moment that its body is there.
  drain = int(AppConfig.body_seconds + given.timeout) + 1
  web = uvicorn.Server(
    uvicorn.Config(
      server.app(),
      http=BoundedProtocol,
      access_log=False,
      log_config=None,
      timeout_graceful_shutdown=drain,
      server_header=False,
    )
  )

  def stop(*_: Any) -> None:
    web.should_exit = True

  for number in (signal.SIGINT, signal.SIGTERM):
    # uvicorn raises what it was sent again, once all is answered.
    signal.signal(number, stop)
  host = f'[{given.host}]' if ':' in given.host else given.host
  logging.info('listening: http://%s:%d', host, sockets[0].getsockname()[1])
  try:
    web.run(sockets)
  except OSError as error:
    if web.started:
      raise
    raise cannot_listen(given, error) from None  # taken in the meantime
  finally:
    server.close(LAST_SECONDS)
    dismiss()


def main(argv: Sequence[str]) -> None:
  """Runs the command; exits with 2 on an error of the user."""
  given = make_parser(__doc__).parse_args(argv)
  handler = logging.StreamHandler(sys.stderr)
  handler.setFormatter(JsonLines())
  # absl has a handler already.
  logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
  # In a container, where it is process 1, nothing else would end it.
  signal.signal(signal.SIGTERM, stop_at_once)
  sys.unraisablehook = mind_unraisable
  try:
    prepare_jax(0)
    processes.join(given.coordinator, given.processes, given.process)
    processes.compile_afresh_on_cpus()
    check_same_flags(given)
    (serve if processes.is_first() else follow_first)(given)
  except Refused as error:
    end_for(UserError(error.message))
  except (SystemExit, KeyboardInterrupt) as error:  # uvicorn cannot start
    end(repr(error), int(getattr(error, 'code', 130)))
  except (Exception, Stopped) as error:
    if not isinstance(stop_behind(error), Stopped):
      end_for(error)
    logging.info('stopped before the server was open')
    end('stopped', 0)
  end(DONE, 0)


if __name__ == '__main__':
  main(sys.argv[1:])
