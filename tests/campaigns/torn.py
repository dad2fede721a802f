"""Tears the files that jobs leave, and opens workdirs that were made by hand.

a journal, a log of usage, metrics.jsonl -> cut at every byte, or a bit
flipped -> what was whole is read, and appended to
a workdir -> files deleted, changed, damaged -> everything that opens one
"""

import contextlib
import copy
import functools
import json
import pathlib
import random
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import prm_jax
from prm_jax.abstain import read_search
from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.evals.abstain import abstain_section
from prm_jax.inference.driver import Cost, Ended
from prm_jax.inference.loading import ModelDescription, write_description
from prm_jax.inference.server import usage
from prm_jax.inference.server.usage import Usage, UsageLog
from prm_jax.jobs import journal
from prm_jax.jobs.journal import Journal
from prm_jax.models import HeadConfig, LoraConfig, TransformerConfig
from prm_jax.report import compare, files, write_report
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.workdir import Workdir, is_done
from prm_jax.search.tree import Node, Stream, Tree
from tests.campaigns.campaign import Campaign, run
from tests.campaigns.mutations import (
  TEXTS,
  change,
  damage,
  limited,
  python_random,
  value,
)
from tests.evals.search_chains import chosen
from tests.report.workdir import DOCUMENT, losses, record

JOB = {'config': 'c1', 'input': 'i1', 'policy': 'p1'}
SECONDS, MOST_MIB = 60.0, 300
APPENDED, FLIPPED, WORKDIRS = 8, 60, 10  # of a case


def cuts(draw: random.Random, data: bytes) -> list[tuple[bytes, bool]]:
  """Returns a file cut at each byte, with whether something is appended."""
  appended = set(draw.sample(range(len(data)), min(APPENDED, len(data))))
  return [(data[:i], i in appended) for i in range(len(data) + 1)]


def flips(draw: random.Random, data: bytes) -> list[tuple[bytes, int]]:
  """Returns a file with a bit flipped, and the number of the line."""
  found = []
  for _ in range(FLIPPED):
    at = draw.randrange(len(data))
    flipped = bytes([data[at] ^ (1 << draw.randrange(8))])
    line = data.count(b'\n', 0, at)
    found.append((data[:at] + flipped + data[at + 1 :], line))
  return found


def item(draw: random.Random, index: int) -> Ended:
  chains = tuple(
    Chain(
      draw.choice(('P', 'Zoë', 'a\u2028b')),
      ('a', draw.choice(('b', '\x85c', '😀'))),
      labels=(StepLabel(0.5, 'rollout', 1, 2), StepLabel(None)),
      meta={'id': index},
    )
    for _ in range(draw.randrange(2))
  )
  cost = Cost(draw.randrange(99), 2, 3, draw.randrange(2), 0.25)
  return Ended(index, chains, '' if chains else 'no', cost)


def tear_journal(draw: random.Random, folder: pathlib.Path) -> int:
  items = [item(draw, i) for i in range(draw.randrange(1, 4))]
  path = folder / 'process-0.jsonl'
  with Journal(path, JOB) as lines:
    for each in items:
      lines.write(each)
  whole = path.read_bytes()
  torn = cuts(draw, whole)
  for data, appended in torn:
    path.write_bytes(data)
    left = items[: max(0, data.count(b'\n') - 1)]
    assert list(journal.read(folder, JOB)) == left
    if appended:
      with Journal(path, JOB) as lines:
        lines.write(items[0])
      assert list(journal.read(folder, JOB)) == [*left, items[0]]
  broken = flips(draw, whole)
  for data, line in broken:
    path.write_bytes(data)
    try:
      read = list(journal.read(folder, JOB))
    except UserError as error:
      assert str(path) in str(error), error
      continue
    assert read[: line - 1] == items[: max(0, line - 1)]
    # A line break that was lost or made changes the number of lines.
    if len(read) == len(items):
      assert read[line:] == items[line:]
  return len(torn) + len(broken)


def tear_usage(draw: random.Random, folder: pathlib.Path) -> int:
  path = folder / 'process-0.jsonl'
  log = UsageLog(path)
  parts = [
    Usage(calls=1, tokens=draw.randrange(99), retried={'busy': 1})
    for _ in range(draw.randrange(1, 5))
  ]
  for part in parts:
    log.add(part)
  whole = path.read_bytes()
  torn = cuts(draw, whole)
  for data, appended in torn:
    path.write_bytes(data)
    left = parts[: data.count(b'\n')]
    assert usage.read(folder).tokens == sum(part.tokens for part in left)
    if appended:
      UsageLog(path).add(Usage(calls=1, tokens=1000))
      assert usage.read(folder).tokens == 1000 + sum(p.tokens for p in left)
  broken = flips(draw, whole)
  for data, _ in broken:
    path.write_bytes(data)
    try:
      assert isinstance(usage.read(folder), Usage)
    except UserError as error:
      assert str(path) in str(error), error
  return len(torn) + len(broken)


def tear_metrics(draw: random.Random, folder: pathlib.Path) -> int:
  rows = [{'step': i, 'loss': draw.random()} for i in range(1, 6)]
  path = folder / 'metrics.jsonl'
  lines = [json.dumps(row).encode() + b'\n' for row in rows]
  whole = b''.join(lines)
  torn = cuts(draw, whole)
  for data, appended in torn:
    if not appended:
      continue
    path.write_bytes(data)
    # A line that lacks its line feed alone is whole, too.
    left = lines[: (data + b'\n').count(b'}\n')]
    resumed_metrics(folder)
    assert path.read_bytes() == b''.join(left) + b'{"step": 9, "loss": 1.0}\n'
    assert len(files.read_metrics(path)['loss']) == len(left) + 1
  broken = flips(draw, whole)[:APPENDED]
  for data, at in broken:
    path.write_bytes(data)
    try:
      files.read_metrics(path)
    except UserError as error:
      assert str(path) in str(error), error
    resumed_metrics(folder)
    now = path.read_bytes()
    assert all(line in now for i, line in enumerate(lines) if abs(i - at) > 1)
  return APPENDED + len(broken)


def resumed_metrics(folder: pathlib.Path) -> None:
  writer = MetricWriter(folder, 8)
  writer.write(9, {'loss': 1.0})
  writer.close()


@functools.cache
def good() -> dict[str, bytes]:
  """Returns the files of a workdir that has something of everything."""
  mean = {'mean': 0.5, 'ci95': [0.4, 0.6]}
  searched = {
    'problems': 10,
    'failed': 1,
    'answers_known': 9,
    'accuracy': mean,
    'ended': 0.9,
    'saved_tokens': 100,
    'cost': {'tokens': mean, 'seconds': mean},
    'dead': {'cut off': 2},
    'failures': {'no answer': 1},
  }
  document = copy.deepcopy(DOCUMENT) | {'dataset': {'name': 'labels_1'}}
  document['results'] |= {'search': searched} | learned()
  tree = Tree('1 + 2?')
  for i, (parent, step) in enumerate([(0, 'one'), (0, 'two'), (1, 'three')]):
    tree.add(Node(parent, step, Stream('0', i), score=0.5, chain_score=0.5))
  tree.nodes[3].ended = True
  shown = {'id': 'p', 'problem': '1 + 2?', 'truth': '3', 'method': 'beam'}
  shown |= {'tree': tree.to_dict(), 'chosen': 3}
  random_numbers = np.random.default_rng(0).random(40)
  found = [
    chosen(i, p > 0.3, (0.9, float(p))) for i, p in enumerate(random_numbers)
  ]
  written = {
    'results.json': document,
    'ledger.json': searched,
    'data.json': {'fingerprint': 'f1'},
    'config.json': {'task': 'search', 'evaluation': {'best_of_n': 'toy'}},
    'abstain.json': {'abstain': abstain_section(found[:30], found[30:], 0.3)},
  }
  lined = {
    'chains.jsonl': [record(), record(note='n'), record(problem='Why?')],
    'trees.jsonl': [shown, shown],
    'metrics.jsonl': losses(4, 0.5),
    'orm/metrics.jsonl': losses(3, 0.7),
    'journal/process-0.jsonl': [{'job': JOB}],
  }
  made = {name: json.dumps(each).encode() for name, each in written.items()}
  for name, rows in lined.items():
    made[name] = b''.join(json.dumps(row).encode() + b'\n' for row in rows)
  with tempfile.TemporaryDirectory() as folder:
    write_description(pathlib.Path(folder), description())
    made['model.json'] = (pathlib.Path(folder) / 'model.json').read_bytes()
  return made


def learned() -> dict[str, Any]:
  """Returns the sections of an RL run."""
  names = ('accuracy', 'chain_score', 'paid', 'steps', 'step_tokens')
  told = dict.fromkeys((*names, 'repeated', 'trivial', 'unfinished'), 0.5)
  looks = [
    {'update': i, 'chains': 64 * i, 'told': told, 'hacked': i == 2}
    for i in range(3)
  ]
  alarm = {'hacked': True, 'update': 2, 'since': 1, 'by': 'score'}
  alarm |= {'accuracy': {'mean': -0.2}, 'score': {'mean': 0.1}}
  accuracy = {'accuracy': {'mean': 0.5, 'ci95': [0.4, 0.6]}}
  rl = {'has_prm': True, 'tested_after': 640, 'looks': looks, 'alarms': [alarm]}
  return {'rl': rl, 'sampling': {'before': accuracy, 'after': accuracy}}


def description() -> ModelDescription:
  return ModelDescription(
    TransformerConfig(
      vocab_size=260, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=16
    ),
    HeadConfig(),
    LoraConfig(),
    make_format('bytes', 64),
  )


def changed(draw: random.Random, name: str, data: bytes) -> bytes:
  """Returns the content of a file as hands may have changed it."""
  kind = draw.randrange(10)
  if kind == 0:
    return draw.choice((b'', b'\n', b'null', b'[]', b'{}', b'[' * 100_000))
  if kind == 1:
    return json.dumps(value(draw)).encode('utf-8', 'surrogatepass')
  if kind == 2:
    return damage(draw, data)
  lines = data.splitlines(keepends=True) if name.endswith('l') else [data]
  at = draw.randrange(len(lines))
  tree = json.loads(lines[at])
  for _ in range(draw.choice((1, 1, 1, 2, 4))):
    change(draw, tree)
  lines[at] = json.dumps(tree).encode() + b'\n'
  return b''.join(lines)


def make_by_hand(draw: random.Random, folder: pathlib.Path) -> None:
  """Writes some of the files of a workdir, and changes a few of them."""
  kept = 0.9 if draw.randrange(4) else 0.4
  names = [name for name in good() if draw.random() < kept]
  wrong = draw.sample(names, min(len(names), draw.choice((0, 1, 1, 2, 4))))
  for name in names:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    data = good()[name]
    path.write_bytes(changed(draw, name, data) if name in wrong else data)
  for name in ('checkpoints', 'data', 'data/labels_1', 'chains.jsonl'):
    if not draw.randrange(6) and not (folder / name).exists():
      (folder / name).mkdir(parents=True)
  if not draw.randrange(10):
    (folder / draw.choice(TEXTS[2:6])).touch()


def opened(folder: pathlib.Path) -> list[Callable[[], object]]:
  """Returns what opens a workdir."""
  name = str(folder)
  config = json.loads(good()['config.json'])
  sampling = prm_jax.SamplingConfig()

  def claim() -> None:
    Workdir.open(name, config, {'seed': 0}).claim('f1')

  return [
    lambda: prm_jax.load(folder),
    lambda: prm_jax.load_policy(folder, sampling),
    lambda: write_report(folder),
    lambda: compare.compare([name, f'{name}/.']),
    lambda: chain_sets.read(name, 'x'),
    lambda: list(journal.read(folder / 'journal', JOB)),
    lambda: is_done(folder),
    lambda: read_search(name, 'x'),
    lambda: usage.read(folder),
    claim,
  ]


def open_by_hand(draw: random.Random, folder: pathlib.Path) -> int:
  for number in range(WORKDIRS):
    workdir = folder / str(number)
    workdir.mkdir()
    make_by_hand(draw, workdir)
    for attempt in opened(workdir):
      try:
        attempt()
      except UserError as error:
        assert str(workdir) in str(error), error
        assert '\n' not in str(error), error
      except OSError as error:  # of a disk, which names its file
        assert str(workdir) in str(error.filename), error
  return WORKDIRS


@functools.cache
def prepare() -> None:
  """Opens a good workdir, which loads what stays in memory."""
  with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made)
    for name, data in good().items():
      (folder / name).parent.mkdir(exist_ok=True)
      (folder / name).write_bytes(data)
    write_report(folder)
    compare.compare([made, f'{made}/.'])
    for attempt in opened(folder):
      with contextlib.suppress(UserError):
        attempt()


KINDS = (tear_journal, tear_usage, tear_metrics, open_by_hand, open_by_hand)


def case(generator: np.random.Generator) -> int:
  draw = python_random(generator)
  attempt = draw.choice(KINDS)
  prepare()
  with (
    tempfile.TemporaryDirectory() as made,
    limited(SECONDS, MOST_MIB, attempt.__name__),
  ):
    return attempt(draw, pathlib.Path(made))


CAMPAIGN = Campaign('torn', 'torn files and changed workdirs', 20_000, case)

if __name__ == '__main__':
  run(CAMPAIGN)
