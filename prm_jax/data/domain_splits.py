"""Draws the problems of a domain and splits them, with chains of each.

a config's draw -> distinct problems -> test, dev, train -> their chains
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from prm_jax.data.chains import Chain
from prm_jax.data.config import DrawConfig
from prm_jax.data.critiques.examples import (
  CritiquesConfig,
  Examples,
  make_examples,
)
from prm_jax.data.critiques.questions import read_question
from prm_jax.data.domains import arithmetic, code, logic, words
from prm_jax.data.domains.draws import make_generator

Log = Callable[[str], None]


class Splits(NamedTuple):
  """Holds the splits of a source, before they are written."""

  train: list[Chain]
  dev: list[Chain]
  evaluations: dict[str, list[Chain]]


def drawn_splits(
  kind: str,
  draw: DrawConfig,
  samples: Sequence[int],
  seed: int,
  shortest: int = 0,
) -> Splits:
  """Draws problems of a known domain and samples its solver's chains.

  All problems come from one draw without repetition, so no split can hold a
  problem of another. Test problems come first: they stay the same when the
  number of training problems changes.

  Args:
    kind: a key of `known.DOMAINS`.
    samples: chains per problem of train, dev and test.
    seed: seed of the draw and the samples.
    shortest: see `DataConfig`; of the arithmetic domain alone.
  """
  train, dev, test = samples
  sizes = {
    'test': (draw.test_problems, test),
    'dev': (draw.dev_problems, dev),
    'train': (draw.train_problems, train),
  }
  count = sum(problems for problems, _ in sizes.values())
  domain = getattr(draw, kind)
  module = {'arithmetic': arithmetic, 'logic': logic, 'code': code}[kind]
  problems = module.sample_problems(domain, count, seed)
  splits, start = {}, 0
  for stream, (name, (count, each)) in enumerate(sizes.items()):
    part = _slice(problems, start, start + count)
    start += count
    splits[name] = []
    for some in _lengths(kind, part, shortest if name == 'train' else 0):
      splits[name] += module.make_chains(
        domain, some, each, seed * len(sizes) + stream
      )
  return Splits(splits['train'], splits['dev'], {kind: splits['test']})


def _slice(problems: Any, start: int, stop: int) -> Any:
  if isinstance(problems, arithmetic.Problems):
    return arithmetic.Problems(*(x[start:stop] for x in problems))
  return problems[start:stop]


def _lengths(kind: str, problems: Any, shortest: int) -> list[Any]:
  if kind != 'arithmetic':
    return [problems]
  return arithmetic.shorten(problems, shortest)


def words_splits(
  draw: DrawConfig, config: words.WordsConfig, seed: int, test_samples: int = 1
) -> Splits:
  """Makes train and dev chains of the same templates, tests of unseen ones."""
  unseen = dataclasses.replace(config, templates='held_out')
  dev = draw.dev_problems
  chains = words.make_chains(config, dev + draw.train_problems, seed)
  tests = []
  if draw.test_problems:
    tests = words.make_chains(unseen, draw.test_problems, seed, test_samples)
  return Splits(chains[dev:], chains[:dev], {'words': tests})


def critique_splits(
  splits: Splits, config: CritiquesConfig, seed: int, log: Log
) -> Splits:
  """Replaces the chains of all splits by critiques of them.

  For each problem of an evaluation, one question about its first chain is drawn
  at random, because questions about one chain are not independent. Critiques
  there have no mistakes: what counts is the question.
  """

  def make(chains: Sequence[Chain], mistaken: float) -> Examples:
    return make_examples(
      chains, dataclasses.replace(config, mistaken=mistaken), seed
    )

  made = make(splits.train, config.mistaken)
  log(
    f'critiques: the verdicts of {len(made.chains):,} of {made.written:,} '
    'agree with the labels; the others are left out'
  )
  firsts = {
    name: list({chain.problem: chain for chain in chains[::-1]}.values())[::-1]
    for name, chains in splits.evaluations.items()
  }
  return Splits(
    made.chains,
    make(splits.dev, 0.0).chains,
    {
      name: _one_each(make(chains, 0.0).chains, seed)
      for name, chains in firsts.items()
    },
  )


def _one_each(critiques: Sequence[Chain], seed: int) -> list[Chain]:
  """Draws one of the questions about each problem."""
  groups: dict[str, list[Chain]] = {}
  for critique in critiques:
    question = read_question(critique.problem)
    groups.setdefault(question.problem, []).append(critique)
  return [
    group[make_generator(seed, number).integers(len(group))]
    for number, group in enumerate(groups.values())
  ]
