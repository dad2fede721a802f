import pytest

from prm_jax.verify.answers import equal
from prm_jax.verify.final_answer import final_answer


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
    ('He has 7 apples left.', None),
    ('= ', None),
  ],
)
def test_what_the_last_step_says(last, answer):
  found = final_answer(['The answer is 9.', last])
  if answer is None:
    assert found is None
  else:
    assert equal(found, answer)
