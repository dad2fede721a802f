"""Features of a frozen backbone: read once, kept, and read out by heads."""

import os

import jax
import numpy as np
import pytest

from prm_jax.data.chains import Chain
from prm_jax.data.encoding import make_format
from prm_jax.inference import features as features_lib
from prm_jax.inference.features import Features, make_scoring
from prm_jax.inference.scorer import Scorer
from prm_jax.models import HeadConfig
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import lock_folder
from prm_jax.training.train_state import make_params
from tests.shared.tiny_scorer import MESH, MODEL, the_scorer

FORMAT = make_format('bytes', 64)
HEAD = HeadConfig('two_class', hidden=3, likelihood=True)


def chains(count=9) -> list[Chain]:
  return [
    Chain(f'{i} and {i + 1}?', tuple(f'that is {n}' for n in range(1 + i % 3)))
    for i in range(count)
  ]


@pytest.fixture
def scorer():
  params = make_params(jax.random.key(1), MODEL, HEAD)
  params['backbone'] = the_scorer().params['backbone']
  params['head']['kernel'] += 0.3
  return Scorer(params, MODEL, HEAD, FORMAT, MESH)


def read(these, folder, scorer):
  """Reads chains; returns their features and how often parts were read."""
  found, lines = Features(FORMAT, MODEL.d_model, folder), []
  found.read(these, scorer, lines.append)
  return found, lines


def test_a_head_on_features_scores_as_the_whole_model(scorer, tmp_path):
  found, _ = read(chains(), tmp_path, lambda: scorer)
  score = make_scoring(found, scorer.params['head'], HEAD)
  expected = scorer.score_many([(c.problem, c.steps) for c in chains()])
  for ours, theirs in zip(score(chains()), expected, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert score([]) == []


def test_steps_beyond_the_window_have_no_features(scorer, tmp_path):
  long = Chain('q', ('a' * 20, 'b' * 20, 'c' * 60))
  beyond = Chain('q' * 99, ('a',))
  found, _ = read([long, beyond], tmp_path, lambda: scorer)
  score = make_scoring(found, scorer.params['head'], HEAD)
  assert [len(each) for each in score([long, beyond])] == [2, 0]


def test_what_is_kept_is_not_read_again(scorer, tmp_path, monkeypatch):
  monkeypatch.setattr(features_lib, 'PART', 2)
  first, lines = read(chains(), tmp_path, lambda: scorer)
  assert len(lines) == 5  # nine chains, two a part
  assert lines[-1].startswith('features of 9 of 9 chains, ')

  def refuse():
    raise AssertionError('the backbone was loaded')

  again, lines = read(chains(), tmp_path, refuse)
  assert not lines
  for chain in chains():
    for a, b in zip(
      first.of(chain.problem, chain.steps),
      again.of(chain.problem, chain.steps),
      strict=True,
    ):
      np.testing.assert_array_equal(a, b)
  # More chains: only those that are new are read.
  more = [*chains(), Chain('new', ('one', 'two'))]
  _, lines = read(more, tmp_path, lambda: scorer)
  assert len(lines) == 1 and lines[0].startswith('features of 1 of 1 chains, ')
  # A run that was stopped goes on with the part that it had not written.
  max(tmp_path.glob('*.npz'), key=lambda path: path.stat().st_size).unlink()
  (tmp_path / 'abc.part.npz').write_bytes(b'stopped here')
  _, lines = read(chains(), tmp_path, lambda: scorer)
  assert len(lines) == 1
  with pytest.raises(UserError, match=r'no features .* of 1 steps for .other'):
    again.of('other', ('a',))


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.write_bytes(path.read_bytes()[:-40]),
    lambda path: path.write_bytes(b'no archive'),
    lambda path: path.write_bytes(b''),
    lambda path: np.savez(path, steps=np.array([1])),
  ],
)
def test_a_damaged_part_is_named_with_its_cure(scorer, tmp_path, damage):
  read(chains(), tmp_path, lambda: scorer)
  (path,) = tmp_path.glob('*.npz')
  damage(path)
  with pytest.raises(UserError, match=rf'^{path} [^\n]*delete it[^\n]*$'):
    read(chains(), tmp_path, lambda: scorer)


def test_a_folder_belongs_to_one_backbone(scorer, tmp_path, monkeypatch):
  monkeypatch.setattr(features_lib, 'DIGESTED', 16)
  read(chains(), tmp_path, lambda: scorer)
  more = [Chain('new', ('one', 'two'))]
  for other in (
    make_params(jax.random.key(5), MODEL, HEAD),
    # Its last layer alone is another.
    jax.tree.map(
      lambda x: x.at[-1].multiply(1.5) if len(x) == MODEL.n_layers else x,
      scorer.params,
    ),
  ):
    with pytest.raises(UserError, match=r'features of another backbone'):
      read(
        more,
        tmp_path,
        lambda params=other: Scorer(params, MODEL, HEAD, FORMAT, MESH),
      )
  with pytest.raises(UserError, match=r'features of another backbone'):
    Features(FORMAT, MODEL.d_model + 1, tmp_path)
  found, _ = read(more, tmp_path, lambda: scorer)
  assert len(found.of('new', ('one', 'two')).states) == 2


def test_two_jobs_do_not_read_into_one_folder_at_once(scorer, tmp_path):
  held = lock_folder(tmp_path, 'features')
  with pytest.raises(UserError, match=r'a job that is running writes there'):
    read(chains(), tmp_path, lambda: scorer)
  os.close(held)
  read(chains(), tmp_path, lambda: scorer)
  # It is free for the next one.
  os.close(lock_folder(tmp_path, 'features'))
