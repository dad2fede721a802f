"""What does a PRM as a service cost, and how does it behave under load?

    python -m experiments.serving.run --prm WORKDIR

Compares 64 clients with `Scorer.score_many` on the same chains, chains that
grow step by step with whole ones, and measures latency at rates below and above
what the server can do. `--larger` is a second PRM, for growing chains only.
Writes results.json, figure.svg and the tables of
README.md beside this file.
"""

import asyncio
import contextlib
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx2
import jax
import numpy as np

from experiments import command_line, figures
from experiments.runner import ROOT
from experiments.serving import load
from experiments.serving.load import Reply, Request
from experiments.speed import sides, workload
from experiments.tables import table
from prm_jax.inference import loading
from prm_jax.runtime import paths
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.sharding import flat_mesh

PORT = 8741
CLIENTS = 64  # as many as the server takes; it refuses further ones
READY = 1800  # seconds in which a server has to compile its programs
STEPS = 10
GROWING = 5  # rounds; the first does not count
SHARES = (0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2.0)  # of the throughput
MARKS = (50, 95, 99)


def pool(root: pathlib.Path) -> list[Request]:
  """Reads the GSM8K pool: a request has the solutions of one problem."""
  path = root / 'best_of_n' / 'gsm8k_test_pool.jsonl'
  found = []
  for line in path.read_bytes().splitlines():
    row = json.loads(line)
    solutions = [
      [text for text in each['text'].splitlines() if text.strip()]
      for each in row['candidates']
    ]
    # Within the window of the PRMs of README.md, whichever reads it.
    request = [
      (row['question'], steps)
      for steps in solutions
      if steps and len(row['question'] + ''.join(steps)) < 900
    ]
    if request:
      found.append(request)
  return found


@contextlib.contextmanager
def serving(prm: str) -> Iterator[str]:
  """Runs a server of a PRM; yields its URL."""
  command = [sys.executable, '-m', 'prm_jax.serve', '--warm', '--prm', prm]
  command += ['--port', str(PORT), '--requests', str(CLIENTS)]
  process = subprocess.Popen(
    command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )
  url = f'http://127.0.0.1:{PORT}'
  try:
    for _ in range(2 * READY):
      if process.poll() is not None:
        raise SystemExit('error: the server has ended; start it by hand')
      with contextlib.suppress(httpx2.TransportError):
        if httpx2.get(f'{url}/ready').status_code == 200:
          break
      time.sleep(0.5)
    else:
      raise SystemExit('error: the server is not ready')
    time.sleep(1)
    if process.poll() is not None:
      raise SystemExit(f'error: another server has port {PORT}; end that one')
    yield url
  finally:
    process.terminate()
    process.wait()


def offline(
  prm: str, requests: Sequence[Request], warm: Sequence[Request]
) -> float:
  """Returns the seconds of `score_many`, in a process of its own."""
  task = json.dumps({'prm': prm, 'requests': requests, 'warm': warm})
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.serving.offline'],
    cwd=ROOT,
    input=task,
    capture_output=True,
    text=True,
    check=True,
  )
  return json.loads(done.stdout)['seconds']


def throughput(
  url: str, prm: str, requests: Iterator[Request], args: Any
) -> list[dict[str, float]]:
  """Measures both in turn, on chains that neither has seen."""
  rounds = []
  for turn in range(args.rounds + 1):
    warm, asked = (
      [next(requests) for _ in range(args.requests)] for _ in range(2)
    )
    found = {}
    for side in ('server', 'offline')[:: -1 if turn % 2 else 1]:
      if side == 'server':
        taken = asyncio.run(load.together(url, asked, CLIENTS))
      else:
        taken = offline(prm, asked, warm)
      found[side] = sum(map(len, asked)) / taken
    print(found, flush=True)
    if turn:  # the first compiles what is new
      rounds.append(found | {'ratio': found['server'] / found['offline']})
  return rounds


async def grow(
  url: str, chains: Sequence[load.Chain]
) -> list[dict[str, dict[str, float]]]:
  """Scores each chain whole, step by step, and without a cache.

  Returns:
    By way the tokens that were read, and the seconds, of each chain and round.
  """
  found, numbers = [], itertools.count(load.FIRST)
  async with load.open_client(url, 1) as client:
    for turn, (problem, steps) in itertools.product(range(GROWING), chains):
      parts = [steps[:n] for n in range(1, len(steps) + 1)]
      unseen = f'{next(numbers)}. {problem}'
      ways = {
        'whole': [(f'{next(numbers)}. {problem}', steps)],
        'grown': [(unseen, part) for part in parts],
        'reread': [(f'{next(numbers)}. {problem}', part) for part in parts],
      }
      measured = {name: await scored(client, ways[name]) for name in ways}
      if turn:
        found.append(measured)
  return found


async def scored(
  client: httpx2.AsyncClient, chains: Sequence[load.Chain]
) -> dict[str, float]:
  """Scores chains one by one; returns the tokens read, and the seconds."""
  tokens, seconds = 0, 0.0
  for chain in chains:
    reply, body = await load.ask(client, [chain])
    tokens += body['usage']['tokens']
    seconds += reply.seconds
  return {'tokens': tokens, 'seconds': seconds}


def parameters(prm: str) -> int:
  """Returns the number of parameters of a training run's PRM."""
  described = loading.read_description(paths.open_path(prm))
  shapes = described.abstract_params(flat_mesh())
  return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def beside_whole(
  measured: Sequence[Mapping[str, Mapping[str, float]]], way: str, what: str
) -> list[float]:
  """Returns what each chain took, as a multiple of the whole chain's."""
  return [each[way][what] / each['whole'][what] for each in measured]


def of_ten_steps(requests: Sequence[Request], count: int) -> list[load.Chain]:
  """Returns chains of so many steps, each of another problem."""
  found = []
  for request in requests:
    for problem, steps in request:
      if len(steps) >= STEPS:
        found.append((problem, steps[:STEPS]))
        break
  return found[:count]


def describe(replies: Sequence[Reply], rate: float) -> dict[str, Any]:
  """Returns the latencies of what was answered, and what was not."""
  answered = [r.seconds for r in replies if r.status == 200]
  statuses = Counter(str(r.status) for r in replies)
  return {
    'rate': rate,
    'statuses': dict(statuses),
    'milliseconds': {
      str(mark): 1000 * float(np.percentile(answered, mark)) for mark in MARKS
    }
    if answered
    else {},
  }


def render(document: Mapping[str, Any]) -> str:
  """Makes the tables."""
  rounds, grown = document['throughput'], document['grown']
  first = table(
    'chains a second: 64 clients | score_many | ratio [min, max] | rounds',
    [
      [
        f'{statistics.median(r["server"] for r in rounds):,.0f}',
        f'{statistics.median(r["offline"] for r in rounds):,.0f}',
        sides.spread([r['ratio'] for r in rounds]),
        str(len(rounds)),
      ]
    ],
  )
  second = table(
    f'PRM | {STEPS} steps one by one, beside the whole chain: tokens read | '
    'seconds [min, max] | the same without a cache: tokens | seconds | chains',
    [
      [
        f'{count / 1e6:,.1f}M',
        *(
          cell
          for way in ('grown', 'reread')
          for cell in (
            f'{beside_whole(measured, way, "tokens")[0]:.2f}',
            sides.spread(beside_whole(measured, way, 'seconds')),
          )
        ),
        str(len(measured)),
      ]
      for count, measured in grown
    ],
  )
  rows = []
  for each in document['load']:
    total = sum(each['statuses'].values())
    shed = each['statuses'].get('429', 0)
    other = total - shed - each['statuses'].get('200', 0)
    rows.append(
      [
        f'{each["rate"]:.1f}',
        *(f'{each["milliseconds"][str(m)]:,.0f}' for m in MARKS),
        f'{100 * shed / total:.0f}%',
        str(other),
      ]
    )
  third = table(
    'requests a second | p50, ms | p95 | p99 | refused with 429 | other ends',
    rows,
  )
  return f'{first}\n\n{second}\n\n{third}'


def draw(document: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws latency, and what is refused, against the offered rate."""
  figure, panels = figures.make_panels(2, (8, 3.2))
  rates = [each['rate'] for each in document['load']]
  for mark in MARKS:
    values = [each['milliseconds'][str(mark)] for each in document['load']]
    panels[0].plot(rates, values, 'o-', label=f'p{mark}')
  panels[0].set_yscale('log')
  panels[0].set_title('milliseconds', loc='left')
  panels[0].legend(frameon=False)
  shed = [
    100 * each['statuses'].get('429', 0) / sum(each['statuses'].values())
    for each in document['load']
  ]
  panels[1].plot(rates, shed, 'o-')
  panels[1].set_title('refused with 429, %', loc='left')
  for panel in panels:
    panel.set_xlabel('requests a second')
    panel.axvline(document['requests_per_second'], color='grey', ls=':')
    panel.spines[['top', 'right']].set_visible(False)
  figure.tight_layout()
  figures.save(figure, path)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(__doc__, __file__, '--rounds')
  parser.set_defaults(
    rounds=5, command=f'{parser.prog} --prm PRM --larger LARGER'
  )
  parser.add_argument('--prm', required=True, help='workdir of a PRM of text')
  parser.add_argument(
    '--larger', required=True, help='workdir of another one, of more parameters'
  )
  parser.add_argument(
    '--requests', type=int, default=128, help='requests of a round'
  )
  parser.add_argument(
    '--seconds', type=float, default=20.0, help='time of each rate'
  )
  args = command_line.parse(parser, free=('prm', 'larger'))
  requests = pool(workload.data_root())
  unseen = load.numbered(requests)
  with serving(args.prm) as url:
    rounds = throughput(url, args.prm, unseen, args)
    growing = of_ten_steps(requests, 5)
    grown = [(parameters(args.prm), asyncio.run(grow(url, growing)))]
    chains = statistics.median(each['server'] for each in rounds)
    most = chains / statistics.mean(map(len, requests))
    measured = []
    for seed, share in enumerate(SHARES):
      replies = asyncio.run(
        load.at_rate(url, unseen, share * most, args.seconds, seed)
      )
      measured.append(describe(replies, share * most))
      print(measured[-1], flush=True)
  with serving(args.larger) as url:
    grown.append((parameters(args.larger), asyncio.run(grow(url, growing))))
  document = command_line.about(args) | {
    'throughput': rounds,
    'grown': grown,
    'requests_per_second': most,
    'load': measured,
    'cores': sides.cores(),
  }
  draw(document, args.output / 'figure.svg')
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
