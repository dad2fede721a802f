"""Exact critiques have the labels' verdicts, or they are dropped."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from prm_jax.data.chains import Chain, first_error
from prm_jax.data.config import DataConfig, DrawConfig, ProblemsConfig
from prm_jax.data.critiques.examples import CritiquesConfig, make_examples
from prm_jax.data.critiques.questions import (
  plain_question,
  read_question,
  verdict_of,
)
from prm_jax.data.critiques.styles import STYLES
from prm_jax.data.critiques.writing import write
from prm_jax.data.datasets import load_dataset
from prm_jax.data.domain_splits import drawn_splits, words_splits
from prm_jax.data.domains import worked_answers
from prm_jax.data.domains.known import domain_of
from prm_jax.data.domains.words import WordsConfig
from prm_jax.data.problems import read_problems
from prm_jax.data.tokenizer import get_tokenizer
from prm_jax.inference.grading import answer_of, ends_right, truth_of
from prm_jax.runtime.errors import UserError

DRAW = DrawConfig(train_problems=60, dev_problems=4, test_problems=6)
PAIRS = [
  (kind, style)
  for kind in ('arithmetic', 'logic')
  for style in STYLES
  if (kind, style) != ('logic', 'genprm')
]


needs_words = pytest.mark.skipif(
  importlib.util.find_spec('reasoning_gym') is None,
  reason="reasoning-gym is not installed: pip install 'prm_jax[words]'",
)


@pytest.fixture(scope='module')
def chains():
  return {
    kind: drawn_splits(kind, DRAW, (4, 1, 1), seed=0).train
    for kind in ('arithmetic', 'logic')
  }


@pytest.fixture(scope='module')
def word_chains():
  return words_splits(DRAW, WordsConfig(), 0).train


@pytest.mark.parametrize(('kind', 'name'), PAIRS)
def test_critiques_agree_with_labels(chains, kind, name):
  """Without mistakes all do, and the right answer is computed from the text."""
  made = make_examples(chains[kind], CritiquesConfig(name, 0.0), seed=1)
  assert len(made.chains) == made.written
  tokenizer = get_tokenizer(f'{kind}_critic')
  verdicts = set()
  for chain in made.chains:
    domain = domain_of(chain.problem)
    assert domain.true_answer(chain.problem) == chain.answer
    assert truth_of(chain) == chain.answer
    assert domain.is_formed(chain.problem, chain.steps)
    assert answer_of(chain.problem, chain.steps) == chain.answer
    assert ends_right(chain.problem, chain.steps, chain.answer)
    for text in (chain.problem, *chain.steps):
      assert tokenizer.decode(tokenizer.encode(text)) == text
    verdicts.add(chain.answer == '-1')
  assert verdicts == {True, False}


@pytest.mark.parametrize(('kind', 'name'), PAIRS)
def test_mistaken_critiques_are_left_out(chains, kind, name):
  """A mistake that changes no verdict is seen by nobody, and stays."""
  right = make_examples(chains[kind], CritiquesConfig(name, 0.0), seed=1)
  mistaken = make_examples(chains[kind], CritiquesConfig(name, 1.0), seed=1)
  some = make_examples(chains[kind], CritiquesConfig(name, 0.3), seed=1)
  assert right.written == mistaken.written == some.written
  assert len(mistaken.chains) < len(some.chains) < len(right.chains)
  for chain in mistaken.chains:
    domain = domain_of(chain.problem)
    assert domain.true_answer(chain.problem) == chain.answer


@needs_words
@pytest.mark.parametrize('name', [name for name in STYLES if name != 'genprm'])
def test_critiques_of_sentences_agree_with_labels(word_chains, name):
  """The right solution says what each step has to be."""
  made = make_examples(word_chains, CritiquesConfig(name, 0.0), seed=1)
  assert len(made.chains) == made.written
  for chain in made.chains:
    assert ends_right(chain.problem, chain.steps, truth_of(chain))
  assert {chain.answer == '-1' for chain in made.chains} == {True, False}
  mistaken = make_examples(word_chains, CritiquesConfig(name, 1.0), seed=1)
  assert 0 < len(mistaken.chains) < mistaken.written == made.written


@needs_words
def test_critics_of_sentences_get_the_questions_of_their_chains():
  """RL knows the true verdict, which the question does not show."""
  config = ProblemsConfig(
    60, 4, 6, kind='words', critiques=CritiquesConfig('thinkprm')
  )
  problems = read_problems(config, 'test', 0)
  made = words_splits(DRAW, WordsConfig(), 0).evaluations['words']
  wrong = {chain.problem: first_error(chain.labels) for chain in made}
  assert len(problems) == 6
  for problem in problems:
    question = read_question(problem.text)
    first = wrong[question.problem]
    seen = 0 <= first < len(question.steps)
    assert problem.truth == str(first if seen else -1)


def test_critiques_of_planted_errors_in_a_worked_answer():
  """What belongs in place of a wrong step is the first that was not said."""
  steps = (
    'He buys 3 bags of 4 apples, 3 * 4 = 12 apples.',
    'He eats 2 of them, 12 - 2 = 10 apples are left.',
    'He sells half of these, 10 / 2 = 5 apples.',
  )
  problem = 'He buys 3 bags of 4 apples, eats 2, sells 1/2. How many?'
  right = Chain(problem, steps, answer='5')
  chains = worked_answers.plant_errors([right] * 40, 0, error_share=0.7)
  made = make_examples(chains, CritiquesConfig('thinkprm', 0.0), seed=0)
  assert len(made.chains) == made.written
  wholes = [c for c in made.chains if len(read_question(c.problem).steps) > 2]
  assert any(chain.answer == '2' for chain in wholes)
  for chain in wholes:
    asked = read_question(chain.problem).steps
    at = int(chain.answer)
    unsaid = [s for s in (*steps, 'The answer is 5.') if s not in asked[:at]]
    if at >= 0:
      line = rf'Step {at + 1} : {unsaid[0]} , \boxed{{incorrect}}'
      assert chain.steps[at] == line


def test_every_step_up_to_the_first_wrong_one_is_asked_about(chains):
  made = make_examples(
    chains['arithmetic'], CritiquesConfig('r_prm', 0.0), seed=0
  )
  expected = 0
  for chain in chains['arithmetic']:
    wrong = first_error(chain.labels)
    expected += len(chain.steps) if wrong < 0 else wrong + 1
  assert made.written == expected
  assert sum(chain.answer != '-1' for chain in made.chains) == sum(
    first_error(chain.labels) >= 0 for chain in chains['arithmetic']
  )


def test_a_critique_in_each_style():
  problem = 'mod 10 : 7 * 3 + 4'
  steps = ('7 * 3 = 1', '1 + 4 = 6')
  expected = {
    'thinkprm': [
      r'Step 1 : 7 * 3 = 1 , \boxed{correct}',
      r'Step 2 : 1 + 4 = 5 , \boxed{incorrect}',
      'Is the solution correct ? no',
    ],
    'genprm': [
      '<analyze> 1 + 4 = 5 </analyze>',
      '<verify> print ( ( 1 + 4 ) % 10 == 6 ) </verify>',
      '[Code Output: False ]',
      r'<output> \boxed{No}',
    ],
    'r_prm': ['1 + 4 = 5', 'Is the step correct (Yes/No) ? No'],
    'boxed_index': ['0 : 7 * 3 = 1', '1 : 1 + 4 = 5', r'\boxed{1}'],
    'genrm': [
      '7 * 3 = 1',
      '1 + 4 = 5',
      'Is the answer correct (Yes/No) ? No',
    ],
  }
  for name, lines in expected.items():
    question = read_question(plain_question(name, problem, steps))
    assert question.steps == steps
    assert write(question, -1, np.random.default_rng(0)) == lines
    text = plain_question(name, problem, steps)
    assert verdict_of(text, lines) == '1'


@pytest.mark.parametrize(
  'text',
  [
    'mod 10 : 7 * 3 + 4',
    'check thinkprm',
    'check thinkprm | mod 10 : 7 * 3 + 4',
    'check nothing | mod 10 : 7 * 3 + 4 | 7 * 3 = 1',
    'check  | p | q',
    '',
  ],
)
def test_other_texts_are_no_questions(text):
  assert read_question(text) is None


def test_what_cannot_be_criticised_is_named(chains):
  config = CritiquesConfig('thinkprm')
  text = Chain('How many?', ('3 apples',), labels=chains['logic'][0].labels[:1])
  with pytest.raises(UserError, match="'How many\\?': exact critiques can be"):
    make_examples([text], config, 0)
  bare = dataclasses.replace(chains['logic'][0], labels=())
  with pytest.raises(UserError, match='judges steps: a chain has none'):
    make_examples([bare], config, 0)
  open_ = dataclasses.replace(chains['logic'][0], outcome=None)
  with pytest.raises(UserError, match='judges outcomes: a chain has none'):
    make_examples([open_], CritiquesConfig('genrm'), 0)
  with pytest.raises(UserError, match='of problems of arithmetic alone'):
    make_examples(chains['logic'], CritiquesConfig('genprm'), 0)


def test_a_dataset_and_problems_of_critiques(tmp_path):
  """A job samples the questions that training has not seen."""
  values = dict(
    train_problems=30,
    dev_problems=4,
    test_problems=6,
    critiques=CritiquesConfig('boxed_index'),
  )
  said = []
  data = DataConfig(**values, tokenizer='arithmetic_critic')
  made = load_dataset(data, 0, tmp_path, said.append)
  assert any('of 60 agree with the labels' in line for line in said)
  (tests,) = made.evaluations.values()
  asked = [read_question(chain.problem) for chain in tests]
  assert len({question.problem for question in asked}) == len(asked) == 6
  assert len({len(question.steps) for question in asked}) > 1
  problems = read_problems(ProblemsConfig(**values), 'test', 0)
  assert [p.text for p in problems] == [chain.problem for chain in tests]
  assert [p.truth for p in problems] == [chain.answer for chain in tests]
  trained = {chain.problem for chain in made.train}
  assert trained.isdisjoint(p.text for p in problems)
