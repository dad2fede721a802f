"""The final answer of a chain is found in linear time."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data.verify.answers import equal
from prm_jax.data.verify.final_answer import final_answer
from tests.shared.real_data import shared


@pytest.mark.parametrize(
  ('last', 'answer'),
  [
    ('7 * 3 = 1', '1'),
    ('1 + 4 = 5 = 5', '5'),
    ('The answer is 72.', '72'),
    ('The final answer is: $1,200.', '$1,200'),
    ('The final answer is $72$. I hope it is correct.', '72'),
    ('The answer is 72, because 70 + 2 = 72.', '72'),
    ('The answer is 72 (since 70 + 2 = 72)', '72'),
    ('The answer is 72 since there are 70 and 2 more.', '72'),
    ('The answer is 72, which is even', '72'),
    ('The answer is 3.5. The other is 4', '3.5'),
    ('The answer is 10 a.m. on Monday.', '10 a.m. on Monday'),
    ('The answer is Mr. Brown.', 'Mr. Brown'),
    (r'The answer is $\boxed{\text{Yes. It is}}$', 'Yes. It is'),
    ('In all 70 + 2 = 72. That is all', '72'),
    ('So 3 + 4 = 7\n#### 7', '7'),
    (r'Thus \(x = 3\), that is $\boxed{\frac{1}{2}}$.', r'\frac12'),
    ('**Answer: 72**', '72'),
    ('**Answer:** 72', '72'),
    ('The answer is **72** clips.', '72 clips'),
    ('So, the answer is: **$18** per day.', '$18 per day'),
    ('Answer: **72** clips sold', '72 clips sold'),
    ('The answer is *5* apples.', '5 apples'),
    ('The answer is __5__ apples.', '5 apples'),
    ('The answer is `5`.', '5'),
    ('**Answer:** `5` apples', '5 apples'),
    ('The answer is **5 apples**.', '5 apples'),
    ('**Answer:** 2**3', '8'),
    ('The answer is **2**3**.', '8'),
    ('So 3 + 4 = **7** apples.', '7 apples'),
    ('The answer is _x_1_.', 'x_1'),
    ('**Final Answer**\n\n72', '72'),
    ('That is right.\n\n# Answer\n\n72', '72'),
    ('7 * 9 = <<7*9=63>>63\nA: 63', '63'),
    ('7 * 9 = $<<7*9=63>>63 a day', '63'),
    ('Final Answer: The final answer is 7. I hope it is correct.', '7'),
    ('The answer is 72. I hope the answer is correct.', '72'),
    ('The answer is $72$ dollars.', '72'),
    ('The answer is $x=6$ or $x=4.$', 'x=6 or x=4'),
    (r'The answer is $\frac{32}{3} \pi$ cubic feet.', r'\frac{32}{3} \pi'),
    ('The answer is between $5 and $6', 'between $5 and $6'),
    ('\\[ x = 5 \\]', '5'),
    ('Thus\n\\[\nx\n= 5\n\\]\nis all.', '5'),
    ('Thus\n\\[\nx =\n5.\n\\]', '5'),
    (r'It is \[ 14 + 20 = 34 \text{ hours}\] So he is done.', '34 hours'),
    ('The answer is\n\\[\n(0,\n1).\n\\]\nI hope so.', '(0, 1)'),
    ('Thus $v =\n\\begin{x}\n1\n\\end{x}$.', '\\begin{x} 1 \\end{x}'),
    (r'so \(x = \frac{1}{2}\)', r'\frac12'),
    (r'Thus \(3 + 69 = 72\) inches.', '72'),
    ('So, $AB = 10$ units.', '10'),
    (r'The answer is 72\).', '72'),
    ('(so the answer is 72)', '72'),
    ('The answer is [1, 2).', '[1, 2)'),
    ('The answer is 5. No, the answer is 7.', '7'),
    ('The answer is 5. Wait: the answer is 7.', '7'),
    ('It is **5**, no, it is **7**.', '7'),
    (r'It is \boxed{5}, no, it is \boxed{7}.', '7'),
    (r'It is \boxed{\{5\}}, and \boxed{7', r'\{5\}'),
    ('It is \\boxed{90\\text{ square\nunits}}.', '90 square units'),
    ('Here 3 + 4 = 7.\n**2. Conclude**', '7'),
    ('10 + 50 = 60 seconds. 60 seconds is a minute', '60 seconds'),
    (r'\theta = \arccos(y) \approx 45.', '45'),
    ('#### Conclusion\nThe answer is 7.', '7'),
    ('A: 5\nB: 6', None),
    ('The solutions are x = 2 and x = 3.', 'x = 2 and x = 3'),
    ('Hence $x = 2$, or $x = -3$.', 'x = 2, or x = -3'),
    ('Thus, x = 5 and y = 3.', '3'),
    ('He has 7 apples left.', None),
    ('= ', None),
    ('The answer is \\[\\]', None),
  ],
)
def test_the_answer_of_the_last_step_is_found(last, answer):
  found = final_answer(['The answer is 9.', last])
  if answer is None:
    assert found is None
  else:
    assert equal(found, answer)


PIECES = (
  *(
    '7',
    ' = ',
    'The answer is ',
    '#### ',
    '\\[',
    '\\]',
    '\\(',
    '\\)',
    '$',
    '**',
  ),
  *('\\boxed{', '{', '}', '\n', '.', ' because ', '\\begin{', 'x', ']', ')'),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(''.join))
@settings(max_examples=300, deadline=None)
def test_any_text_has_an_answer_or_none(text):
  found = final_answer([text])
  assert found is None or (found and found == found.strip())


@pytest.mark.parametrize('start', ['', 'The answer is ', 'x = '])
@pytest.mark.parametrize(
  'piece',
  [
    *('\\boxed{', '\\boxed{5}', '{', '}', '$', '$1 ', '\\(', '\\[', '\n', ' '),
    *('*', '**1', '= ', ') ', '. ', 'answer is ', 'answer:\n', '#### ', 'A:\n'),
    *('\\begin{', '\\end{', '<<', '\\approx '),
  ],
)
def test_time_is_linear_in_the_length(start, piece):
  def seconds(size):
    text = start + piece * (size // len(piece))
    times = []
    for _ in range(3):
      begin = time.process_time()
      final_answer([text])
      times.append(time.process_time() - begin)
    return min(times)

  # For eight times the text, linear time is 8 times as long, quadratic 64.
  assert seconds(100_000) < 30 * max(seconds(12_500), 0.002)


def test_recorded_answers_of_published_samples():
  """Finds the recorded answer in the texts of two models.

  The other texts state no answer, or another one than was recorded.
  """
  lines = shared('best_of_n/gsm8k_test_pool.jsonl').read_text().splitlines()
  for source, least in [
    ('openai-175b_verification', 0.99),
    ('rho-math-7b', 0.95),
  ]:
    found = [
      equal(final_answer([candidate['text']]) or '', candidate['answer'])
      for line in lines[::20]
      for candidate in json.loads(line)['candidates']
      if candidate['source'] == source
    ]
    assert len(found) == 66
    assert sum(found) >= least * len(found), source
