"""Equality of MATH's answers and respelt or changed versions of them."""

import pytest

from experiments.answer_equality.pairs import Pair, make_pairs, read_answers
from experiments.answer_equality.run import PAIRS, SECONDS, SEED
from prm_jax.data.verify import answers
from tests.shared.real_data import shared

pytest.importorskip('math_verify', reason="pip install 'prm_jax[verify]'")


def pairs_of_math(count: int) -> list[Pair]:
  folder = shared('math/test_5000.jsonl').parent
  return make_pairs(read_answers(folder), count, SEED)


def check(pairs: list[Pair]) -> None:
  """No pair is falsely equal, 99.5% are right, and the order never matters."""
  false_equal, false_different, asymmetric = [], [], []
  for pair in pairs:
    one = answers.compare(pair.answer, pair.truth, SECONDS)
    other = answers.compare(pair.truth, pair.answer, SECONDS)
    if one.equal and not pair.equal:
      false_equal.append(pair)
    if pair.equal and not one.equal:
      false_different.append(pair)
    if one.equal != other.equal:
      asymmetric.append(pair)
  assert false_equal == []
  assert asymmetric == []
  assert len(false_different) <= 0.005 * len(pairs), false_different


def test_pairs_of_math_are_of_every_kind():
  pairs = pairs_of_math(PAIRS)
  assert len(set(pairs)) == PAIRS >= 3_000
  for equal in (True, False):
    kinds = [pair.kind for pair in pairs if pair.equal is equal]
    assert 0.4 * PAIRS < len(kinds) < 0.6 * PAIRS
    assert len(set(kinds)) >= 25
  assert all(pair.answer != pair.truth for pair in pairs)


@pytest.mark.parametrize('every', [10, pytest.param(1, marks=pytest.mark.slow)])
def test_all_pairs_of_math(every):
  check(pairs_of_math(PAIRS)[::every])
