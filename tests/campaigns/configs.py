"""Reads changed configs: settings come out, or lines that each name a key.

configs/*_math.py with variants -> a raw config -> changed -> read_settings
"""

import datetime
import functools
import json
import pathlib
import random
import re
import time

import ml_collections
import numpy as np

from prm_jax.jobs.settings import TASKS, read_settings
from prm_jax.runtime.checks import Faults
from tests.campaigns import mutations
from tests.campaigns.campaign import Campaign, run
from tests.shared import configs

FILES = sorted(
  path.stem
  for path in (pathlib.Path(__file__).parents[2] / 'configs').glob('*_math.py')
)
CONFIGS = 50  # of a case
SECONDS = 1.0
# What no JSON holds, but a config file may.
OBJECTS = (
  *(b'bytes', {1, 2}, (), (1, 'a'), object, len, 1j, range(3)),
  *(np.zeros(3), np.float32(0.5), np.int64(3), np.array(1.0), float),
  *(datetime.date(2024, 1, 1), ml_collections.ConfigDict({'a': 1})),
)
# Dotted names of keys, and what was wrong and is expected of each.
LINE = re.compile(r'config\.[^=]*=.*: \S.*', re.DOTALL)


@functools.cache
def variants(file: str) -> tuple[str, ...]:
  """Returns the variants that a config file says it has."""
  module = __import__(f'configs.{file}', fromlist=['x'])
  listed = module.__doc__.partition('Variants')[2]
  return tuple(re.findall(r'^ {4}([a-z0-9_]+) {2}', listed, re.MULTILINE))


@functools.cache
def raw(file: str, chosen: str) -> str:
  """Returns a config as JSON; '' if the variants do not go together."""
  try:
    return json.dumps(configs.raw(file, chosen))
  except ValueError:  # one of them needs another before it
    return ''


def drawn(draw: random.Random) -> dict:
  """Returns the config of a file with some of its variants."""
  file = draw.choice(FILES)
  known = variants(file)
  chosen = draw.sample(known, draw.randrange(min(3, len(known) + 1)))
  return json.loads(raw(file, ','.join(chosen)) or raw(file, ''))


def change(draw: random.Random, config: dict) -> None:
  """Changes a config at one place."""
  kind = draw.randrange(4)
  if kind == 0:
    mutations.change(draw, config)
    return
  parent, key = draw.choice(mutations.places(config))
  if kind == 1:
    parent[key] = draw.choice(OBJECTS)
  elif kind == 2:
    parent[key] = draw.choice(mutations.NUMBERS)
  elif isinstance(parent, dict):
    # The value of one key at another: often of the right type.
    other = drawn(draw)
    there, name = draw.choice(mutations.places(other))
    parent[name if isinstance(name, str) else key] = there[name]


def check(config: dict) -> None:
  began = time.process_time()
  try:
    settings = read_settings(config)
  except Faults as error:
    assert error.faults
    # Read as one text: a value may hold line breaks of its own.
    for fault in error.faults:
      line = str(fault)
      assert LINE.fullmatch(line), line
      assert '\n' not in line, line
    assert str(error) == '\n'.join(map(str, error.faults))
  else:
    assert type(settings) is TASKS[settings.task]
  took = time.process_time() - began
  assert took < SECONDS, f'{took} s'


def case(generator: np.random.Generator) -> int:
  draw = mutations.python_random(generator)
  with mutations.limited(20.0, 200):
    for _ in range(CONFIGS):
      config = drawn(draw)
      for _ in range(draw.choice((0, 1, 1, 2, 3, 8))):
        if config:
          change(draw, config)
      try:
        check(config)
      except Exception as error:
        error.add_note(repr(config)[:5000])
        raise
  return CONFIGS


CAMPAIGN = Campaign('configs', 'changed configs read', 100_000, case)

if __name__ == '__main__':
  run(CAMPAIGN)
