"""Serves PRMs over HTTP.

    python -m prm_jax.serve --prm /tmp/prm_math --port 8000
    curl localhost:8000/v1/steps -d '{"chains": [{"problem":
      "mod 10 : 7 * 3 + 4", "steps": ["7 * 3 = 1", "1 + 4 = 5"]}]}'

--prm is the workdir of a PRM that was trained here, the folder of a published
one, or hf://owner/name; NAME=PATH names it to clients. A chain that grew since
it was last scored costs its new steps only. Besides its own protocol the server
speaks those of vLLM, SGLang, OpenRLHF and openr, see docs/serving.md. It stops
on SIGTERM when all requests under way are answered.
"""

import argparse
import logging
import pathlib
import signal
import sys
import threading
from collections.abc import Sequence

from prm_jax.inference import loading
from prm_jax.inference.published import STYLES
from prm_jax.inference.score import AGGREGATES
from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.main import prepare_jax
from prm_jax.models.config import DTYPES
from prm_jax.models.hub.chat_template import chat_renderer
from prm_jax.models.hub.safetensors_files import HUB, resolve
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import ServedPrm

try:
  import uvicorn

  from prm_jax.serve.app import AppConfig, Server
  from prm_jax.serve.connections import BoundedProtocol
  from prm_jax.serve.gather import GatherConfig, Gatherer
  from prm_jax.serve.observed import Observed
  from prm_jax.serve.warm import warm
except ModuleNotFoundError as error:
  print(
    f"error: serving needs the package {error.name}: pip install -e '.[serve]'",
    file=sys.stderr,
  )
  sys.exit(2)

Address = tuple[str, str]  # name, path


def address(text: str) -> Address:
  """Reads NAME=PATH, or PATH, whose last part is the name then."""
  name, equals, path = text.partition('=')
  if equals and '/' not in name:
    return name, path
  return pathlib.PurePath(text.removeprefix(HUB)).name or text, text


def make_parser() -> argparse.ArgumentParser:
  """Returns the parser of the command line."""
  parser = argparse.ArgumentParser(
    prog='prm_jax.serve',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    '--prm',
    dest='prms',
    type=address,
    action='append',
    required=True,
    metavar='[NAME=]PATH',
    help='a PRM; may be given again for further ones',
  )
  add('--host', default='127.0.0.1', help='0.0.0.0 for all (%(default)s)')
  add('--port', type=int, default=8000, help='0 takes a free one (%(default)s)')
  add('--dtype', choices=DTYPES, default='', help='as in prm_jax.load')
  add('--style', choices=STYLES, default='', help='as in prm_jax.load')
  add(
    '--rows',
    type=int,
    default=1024,
    help='chains of the longest length that the cache holds (%(default)s)',
  )
  add(
    '--warm',
    action='store_true',
    help='compile the programs first; /ready says when it is done',
  )
  add('--keys', metavar='FILE', help='keys of clients, a line each')
  add(
    '--requests',
    type=int,
    default=AppConfig.requests,
    help='most requests under way; further ones get 429 (%(default)s)',
  )
  add(
    '--timeout',
    type=float,
    default=AppConfig.timeout,
    help='seconds in which a request is answered (%(default)s)',
  )
  add(
    '--body-bytes',
    type=int,
    default=AppConfig.body_bytes,
    help='most bytes of a body (%(default)s)',
  )
  add(
    '--wait-ms',
    type=float,
    default=1000 * GatherConfig.wait,
    help='most milliseconds to wait for other requests (%(default)s)',
  )
  add(
    '--separator',
    default=AppConfig.separator,
    help='text between steps where the separator is not sent (a blank line)',
  )
  add(
    '--aggregate',
    choices=AGGREGATES,
    default=AppConfig.aggregate,
    help='makes one score of a chain where one is read (%(default)s)',
  )
  return parser


def read_keys(path: str | None) -> tuple[str, ...]:
  """Reads the keys of a file; none without a file.

  Raises:
    UserError: the file has no key.
  """
  if path is None:
    return ()
  lines = pathlib.Path(path).expanduser().read_text().splitlines()
  keys = tuple(line.strip() for line in lines if line.strip())
  if not keys:
    raise UserError(f'--keys={path}: the file is empty; write a key a line')
  return keys


def open_prm(name: str, path: str, given: argparse.Namespace) -> ServedPrm:
  """Opens a PRM, with its chat template if it has one."""
  scorer = loading.load(path, style=given.style, dtype=given.dtype)
  render = None
  if not (pathlib.Path(path) / 'model.json').is_file():
    try:
      render = chat_renderer(resolve(path))
    except UserError:
      logging.info('%s has no chat template, so it reads no messages', name)
  tree = TreeScorer(scorer, given.rows, name)
  return ServedPrm(name, tree, scorer.format, render)


def open_server(given: argparse.Namespace) -> Server:
  """Opens the PRMs, and gets them ready in a thread of its own."""
  names = [name for name, _ in given.prms]
  if len({*names}) < len(names):
    raise UserError('--prm: two PRMs have the same name; give NAME=PATH')
  keys = read_keys(given.keys)
  prms = [open_prm(name, path, given) for name, path in given.prms]
  gathering = GatherConfig(wait=given.wait_ms / 1000)
  observed = Observed(gathering.tokens)
  gatherer = Gatherer(gathering, observed)
  config = AppConfig(
    requests=given.requests,
    body_bytes=given.body_bytes,
    timeout=given.timeout,
    keys=keys,
    separator=given.separator,
    aggregate=given.aggregate,
  )
  server = Server(prms, gatherer, observed, config)

  def get_ready() -> None:
    if given.warm:
      for prm in prms:
        warm(prm, gatherer)
    server.ready = True
    logging.info('ready: %s', ', '.join(names))

  threading.Thread(target=get_ready, daemon=True).start()
  return server


def serve(given: argparse.Namespace) -> None:
  """Answers until a signal ends it."""
  server = open_server(given)
  for number in (signal.SIGINT, signal.SIGTERM):
    # uvicorn raises what it was sent again, once all is answered.
    signal.signal(number, lambda *_: None)
  uvicorn.Server(
    uvicorn.Config(
      server.app(),
      host=given.host,
      port=given.port,
      http=BoundedProtocol,
      access_log=False,
      log_config=None,
      # Twice as many as are answered, so that the others hear 429.
      limit_concurrency=2 * given.requests + 16,
      timeout_graceful_shutdown=int(given.timeout) + 1,
      server_header=False,
    )
  ).run()


def main(argv: Sequence[str]) -> None:
  """Runs the command; exits with 2 on an error of the user."""
  given = make_parser().parse_args(argv)
  logging.basicConfig(
    level=logging.INFO,
    format='%(asctime)s %(message)s',
    stream=sys.stderr,
    force=True,  # absl has a handler already
  )
  with exit_on_user_error():
    prepare_jax(0)
    try:
      serve(given)
    except Refused as error:
      raise UserError(error.message) from None


if __name__ == '__main__':
  main(sys.argv[1:])
