"""Tests that copies of evaluation problems are found and others are not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.data.chains import Chain
from prm_jax.data.contamination import (
  Removed,
  normalise,
  read_evaluation_problems,
  remove_contaminated,
)
from prm_jax.data.readers import read_chains
from prm_jax.runtime.errors import UserError
from tests.shared.real_data import shared


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    ('Find $x$ such that $x=1$.', 'find  x such that\nx = 1'),
    (
      r'\(\dfrac{1}{2}\) of \[ x \]',
      r'$\frac{1}{2}$ of $x$',
    ),
    (r'$\left(3,\, 4\right)$', '$(3, 4)$'),
    (r'$x\!\in\!\quad A$', r'$x\in A$'),
    (r'$1{,}000$ and 2,500,000', '1000 and 2500000'),
    (r'$1,\!000$', '1000'),
    ('Janet\u2019s \u201cducks\u201d', 'Janet\'s "ducks"'),
    ('a \u2013 b \u2212 c', 'a - b - c'),
    ('\ufb01nd the \uff21nswer', 'find the answer'),
    ('Is it so? Yes; it is: really.', 'Is it so Yes it is really'),
    ('f(2), 3', 'f(2) 3'),
  ],
)
def test_copies_have_the_same_normal_form(one, other):
  assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    ('x + 1', 'x - 1'),
    ('1.5 metres', '15 metres'),
    ('the point (1,2)', 'the point (12)'),
    ('x^2', 'x_2'),
    (r'\leftarrow a', 'arrow a'),
    (r'\lim x', r'\limsup x'),
    ('{1, 2}', '(1, 2)'),
    ('5!', '5'),
    ('10%', '10'),
  ],
)
def test_other_problems_have_another_normal_form(one, other):
  assert normalise(one) != normalise(other)


@given(st.text('abcxyz0123456789+-*/=(){}^', min_size=1), st.data())
def test_layout_does_not_change_the_normal_form(text, data):
  loose = ''.join(
    char + data.draw(st.sampled_from(['', ' ', '\n', '$', r'\,', r'\quad ']))
    for char in text
  )
  assert normalise(loose.upper().replace('\\QUAD', '\\quad')) == normalise(text)


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    ('the point $(0,3)$', 'The point (0, 3)'),
    ('3:2', '3: 2'),
    ('{1,2,3}', '{1, 2, 3}'),
    (r'Sue has \$5, and spends 10\% of it', 'Sue has $5, and spends 10% of it'),
    (r'Room \#3 \& x\_y', 'Room #3 & x_y'),
  ],
)
def test_spaces_after_separators_and_escapes_hide_no_copy(one, other):
  for text, tested in ((one, other), (other, one)):
    kept, _ = remove_contaminated([Chain(text, ('a',))], {'test': [tested]})
    assert not kept


def chain(problem):
  return Chain(problem, ('a',))


def test_variants_of_an_evaluated_problem_are_removed():
  """PRMBench changed the wording of the problem, or left it."""
  meta = {'original_problem': 'a?'}
  variant, own = (Chain(p, ('s',), meta=meta) for p in ('a, if b?', 'A?'))
  for problem, count in (('A ?', 2), ('a if b?', 1)):
    kept, removed = remove_contaminated([variant, own], {'test': [problem]})
    assert removed['test'] == Removed(count, 1)
    assert len(kept) == 2 - count


def test_chains_are_removed_and_counted_per_evaluation_set():
  chains = [chain(p) for p in ('A b', 'a  b.', 'c', 'd', 'e')]
  kept, removed = remove_contaminated(
    chains, {'one': ['AB', 'x'], 'two': iter(['a b', 'D']), 'three': ['y']}
  )
  assert kept == [chain('c'), chain('e')]
  assert removed == {
    'one': Removed(chains=2, problems=1),
    'two': Removed(chains=3, problems=2),
    'three': Removed(chains=0, problems=0),
  }
  assert remove_contaminated(chains, {}) == (chains, {})
  with pytest.raises(UserError, match="evaluation set 'none' has no problems"):
    remove_contaminated(chains, {'none': []})


def test_problems_are_read_from_every_known_field(tmp_path):
  path = tmp_path / 'eval.json'
  rows = [
    {'problem': ' P '},
    {'question': 'Q'},
    {'input': 'I'},
    {'original_question': 'O', 'modified_question': 'M'},
    {'Question': 'B', 'Options': 'A: x'},
  ]
  path.write_text(json.dumps(rows))
  assert read_evaluation_problems(path) == ['P', 'Q', 'I', 'O', 'M', 'B']
  for text, message in (
    ('{"answer": 1}', ':1: none of the fields question, problem, '),
    ('{"problem": "P"}\n{"problem": 3}', ":2: 'problem' is 3"),
    ('{"problem": "P"}\n[', ':2: the file is cut off'),
    ('3', ':1: 3 where a JSON object belongs'),
    ('', 'has no records'),
  ):
    path.write_text(text)
    with pytest.raises(UserError, match=message):
      read_evaluation_problems(path)


def test_the_prm800k_subset_against_the_evaluation_sets():
  chains, _ = read_chains(
    shared('prm800k/prm800k_subset.jsonl'), 'prm800k_flat'
  )
  kept, removed = remove_contaminated(
    chains,
    {
      'processbench_math': read_evaluation_problems(
        shared('processbench/math.json')
      ),
      'math_500': read_evaluation_problems(shared('math/math_500.jsonl')),
      'math_test': read_evaluation_problems(shared('math/test_5000.jsonl')),
    },
  )
  assert removed == {
    'processbench_math': Removed(chains=81, problems=16),
    'math_500': Removed(chains=0, problems=0),
    # The problems of ProcessBench-math are among these.
    'math_test': Removed(chains=429, problems=80),
  }
  assert len(kept) == 1339 - 429


def test_verify_then_generate_against_gsm8k():
  chains, _ = read_chains(
    shared('verify_then_generate/dataset.json'), 'verify_then_generate'
  )
  kept, removed = remove_contaminated(
    chains,
    {
      'gsm8k_test': read_evaluation_problems(shared('gsm8k/test.jsonl')),
      'processbench_gsm8k': read_evaluation_problems(
        shared('processbench/gsm8k.json')
      ),
    },
  )
  assert removed == {
    'gsm8k_test': Removed(chains=205, problems=45),
    'processbench_gsm8k': Removed(chains=117, problems=25),
  }
  assert len(kept) == 797


def test_processbench_is_in_the_test_sets_it_was_drawn_from():
  for name, drawn_from, problems in (
    ('gsm8k', 'gsm8k/test.jsonl', 375),
    ('math', 'math/test_5000.jsonl', 955),
  ):
    chains, _ = read_chains(shared(f'processbench/{name}.json'), 'processbench')
    evaluation = {'test': read_evaluation_problems(shared(drawn_from))}
    kept, removed = remove_contaminated(chains, evaluation)
    assert kept == []
    assert removed['test'].problems == problems


@pytest.mark.parametrize(
  ('name', 'count'),
  [('math/test_5000.jsonl', 5000), ('gsm8k/test.jsonl', 1319)],
)
def test_problems_of_a_test_set_have_distinct_normal_forms(name, count):
  problems = read_evaluation_problems(shared(name))
  assert len({normalise(problem) for problem in problems}) == count
