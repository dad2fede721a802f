"""Steps that are split into lines or sentences, and scored by their pieces."""

import json

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel, to_dict
from prm_jax.data.config import DataConfig
from prm_jax.data.datasets import load_dataset
from prm_jax.data.segments import (
  score_pieces,
  split_chain,
  split_step,
  unlike,
)
from tests.shared.cpu_time import cpu_seconds


@pytest.mark.parametrize(
  ('text', 'pieces'),
  [
    ('One. Two is 2. So 4.', ['One.', 'Two is 2.', 'So 4.']),
    (
      'It costs $3.50 a day. $7 for two.',
      ['It costs $3.50 a day.', '$7 for two.'],
    ),
    ('Mr. Smith has 3 eggs, i.e. Three.', None),
    ('1. First we add.', None),
    ('See Fig. 2 for no. 5 and J. Doe.', None),
    ('Is it so? Yes! Done.', ['Is it so?', 'Yes!', 'Done.']),
    ('He said "stop." Then he left.', ['He said "stop."', 'Then he left.']),
    ('That is 3.14 and 2 . 5 apples', None),
    ('a.b is 2. \\(x\\) is 3.', ['a.b is 2.', '\\(x\\) is 3.']),
    ('It is 3. thus more', None),  # no capital follows
    ('Line one\nLine two. End.', ['Line one', 'Line two.', 'End.']),
    ('The U.S. Army came.', None),
    ('\\[ x = 1. \\] So 2.', None),
    ('no end', None),
    ('  ', None),
  ],
)
def test_sentences_by_hand(text, pieces):
  assert split_step(text, 'sentences') == tuple(
    pieces or [text.strip() or text]
  )


def test_a_long_text_without_ends_takes_linear_time():
  """Four times as long a text takes about four times as long, not sixteen."""
  took = []
  for count in (4_000, 16_000):
    text = 'Mr. Smith ' * count
    seconds = cpu_seconds(lambda text=text: split_step(text, 'sentences'))
    took.append(seconds)
    assert split_step(text, 'sentences') == (text.strip(),)
  assert took[1] < 8 * took[0] + 0.1


def test_lines_and_given():
  text = 'One. Two.\n\n  Three.\r\n'
  assert split_step(text, 'lines') == ('One. Two.', 'Three.')
  assert split_step(text, 'given') == (text.strip(),)


RIGHT, WRONG, UNKNOWN = StepLabel(1.0), StepLabel(0.0), StepLabel(None)


def test_labels_of_the_pieces():
  """Where in a wrong step its error stands is not known."""
  chain = Chain(
    'q',
    ('A is 1. B is 2.', 'C is 3. D is 9. So.', 'If. Go.', 'Ha.'),
    labels=(RIGHT, WRONG, UNKNOWN, StepLabel(0.5)),
  )
  found = split_chain(chain, 'sentences')
  assert found.steps == (
    *('A is 1.', 'B is 2.', 'C is 3.', 'D is 9.', 'So.', 'If.', 'Go.', 'Ha.'),
  )
  values = [label.value for label in found.labels]
  assert values == [1, 1, None, None, 0, None, None, 0.5]
  assert split_chain(chain, 'lines') is chain
  unlabelled = split_chain(Chain('q', ('Aa. Bb.',)), 'sentences')
  assert (unlabelled.steps, unlabelled.labels) == (('Aa.', 'Bb.'), ())


def test_pieces_of_a_neutral_step_are_not_right():
  neutral = StepLabel(1.0, neutral=True)
  chain = Chain('q', ('A is 1. B is 2.',), labels=(neutral,))
  first, last = split_chain(chain, 'sentences').labels
  assert (first.value, last) == (None, neutral)


def test_a_step_is_as_good_as_its_worst_piece():
  scores = {'Aa.': 0.1, 'Bb.': 0.2, 'C': 0.7, 'Dd.': 0.8, 'Ee.': 0.1}

  def score(chains):
    # The window ends after four pieces.
    return [
      np.array([scores[s] for s in chain.steps[:4]], np.float32)
      for chain in chains
    ]

  chains = [Chain('q', ('Aa. Bb.', 'C', 'Dd. Ee.')), Chain('q', ('C',))]
  found = score_pieces(score, 'sentences')(chains)
  assert [x.tolist() for x in found] == [
    pytest.approx([0.1, 0.7]),
    pytest.approx([0.7]),
  ]
  found = score_pieces(score, 'sentences', last=True)(chains)
  assert [x.tolist() for x in found] == [
    pytest.approx([0.2, 0.7]),
    pytest.approx([0.7]),
  ]
  assert score_pieces(score, 'given') is score

  def score_nothing(chains):
    return [np.zeros(0, np.float32) for _ in chains]

  (nothing, _) = score_pieces(score_nothing, 'sentences')(chains)
  assert nothing.shape == (0,)


def test_training_chains_are_split_and_others_stay(tmp_path):
  chains = [
    Chain(f'q{i}', ('It is 2. It is 3.', 'So 5.'), labels=(RIGHT, WRONG))
    for i in range(20)
  ]
  lines = [json.dumps(to_dict(chain)) for chain in chains]
  (tmp_path / 'chains.jsonl').write_text('\n'.join(lines))
  config = DataConfig(
    kind='files',
    root=str(tmp_path),
    train=(('chains.jsonl', 'chains'),),
    dev_share=0.3,
    segments='sentences',
  )
  found = load_dataset(config, 0, tmp_path / 'work', [].append)
  assert {len(chain.steps) for chain in found.train} == {3}
  assert {len(chain.steps) for chain in found.dev} == {2}
  assert len(found.train) + len(found.dev) == 20


def test_steps_unlike_those_learned_from_are_described():
  short = [Chain('q', ('It is 2.',) * 6)] * 9
  long = [Chain('q', (' '.join(['It is 2.'] * 6),))] * 5
  assert unlike(short, short, 'given') == ''
  assert unlike(short, long, 'given') == (
    'a median of 1 steps, of 53 characters, where the chains learned from have '
    '6, of 8'
  )
  assert unlike(short, long, 'sentences') == ''
  assert unlike(short, [], 'given') == ''
