"""The domains whose truth is known, as jobs draw, grade and label them."""

import dataclasses

import pytest

from prm_jax.data.config import DrawConfig, ProblemsConfig
from prm_jax.data.domain_splits import drawn_splits
from prm_jax.data.domains.known import DOMAINS, domain_of
from prm_jax.data.encoding import make_format
from prm_jax.data.problems import read_problems
from prm_jax.data.tokenizer import get_tokenizer
from prm_jax.inference.grading import answer_of, ends_right, truth_of
from prm_jax.labels import verifier
from prm_jax.labels.verifier import VerifierConfig

SIZES = dict(train_problems=12, dev_problems=4, test_problems=6)
DRAW = DrawConfig(**SIZES)


def label(chain):
  work = verifier.label(chain, VerifierConfig())
  with pytest.raises(StopIteration) as stopped:
    next(work)
  return stopped.value.value


@pytest.fixture(scope='module')
def splits():
  return {kind: drawn_splits(kind, DRAW, (2, 1, 3), 0) for kind in DOMAINS}


@pytest.mark.parametrize('kind', DOMAINS)
def test_a_problem_is_in_one_split(splits, kind):
  found = splits[kind]
  tests = found.evaluations[kind]
  sets = [{c.problem for c in it} for it in (found.train, found.dev, tests)]
  assert [len(each) for each in sets] == [12, 4, 6]
  assert len(set().union(*sets)) == 22
  assert [len(x) for x in (found.train, found.dev, tests)] == [24, 4, 18]


@pytest.mark.parametrize('kind', DOMAINS)
def test_more_training_problems_leave_tests_as_they_are(splits, kind):
  more = dataclasses.replace(DRAW, train_problems=30)
  other = drawn_splits(kind, more, (2, 1, 3), 0)
  assert other.evaluations == splits[kind].evaluations
  assert other.dev == splits[kind].dev
  assert other.train[:24] == splits[kind].train
  assert drawn_splits(kind, DRAW, (2, 1, 3), 1) != splits[kind]


@pytest.mark.parametrize('kind', DOMAINS)
def test_jobs_read_the_same_problems(splits, kind):
  config = ProblemsConfig(**SIZES, kind=kind)
  for split in ('train', 'dev', 'test'):
    chains = getattr(splits[kind], split, splits[kind].evaluations[kind])
    problems = read_problems(config, split, 0)
    assert [p.text for p in problems] == list(
      dict.fromkeys(chain.problem for chain in chains)
    )
    for problem in problems:
      assert problem.truth == domain_of(problem.text).true_answer(problem.text)


@pytest.mark.parametrize('kind', DOMAINS)
def test_grading_and_labels_are_the_domain_s_own(splits, kind):
  chains = splits[kind].evaluations[kind][:: 3 if kind == 'code' else 1]
  assert {chain.outcome for chain in chains} == {True, False}
  for chain in chains:
    domain = domain_of(chain.problem)
    assert domain is DOMAINS[kind]
    assert domain.is_formed(chain.problem, chain.steps)
    assert truth_of(chain) == domain.true_answer(chain.problem)
    assert answer_of(chain.problem, chain.steps) == chain.answer
    right = ends_right(chain.problem, chain.steps, truth_of(chain))
    assert right == chain.outcome
    bare = dataclasses.replace(chain, labels=())
    assert label(bare).labels == chain.labels


@pytest.mark.parametrize('kind', DOMAINS)
def test_its_tokenizer_has_its_words(splits, kind):
  tokenizer = get_tokenizer(kind)
  for chain in splits[kind].train:
    for text in (chain.problem, *chain.steps):
      assert tokenizer.decode(tokenizer.encode(text)) == text
  prints = {make_format(each, 64).fingerprint() for each in DOMAINS}
  assert len(prints) == len(DOMAINS)
