"""What a PRM selected is selected once; the sources that agree have names."""

import dataclasses
import json
import shutil

import pytest

from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.inference.protocols import ScoredSteps
from prm_jax.jobs.label import read_all
from prm_jax.jobs.selections import TextScorer, select
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir
from tests.shared import configs


@pytest.fixture
def settings(finished, tmp_path):
  """A PRM that can be deleted, and four chains of each of eight problems."""
  return configs.settings(
    'label_math',
    'active,tiny',
    **{
      'prm.path': str(shutil.copytree(finished, tmp_path / 'prm')),
      'chains.kind': 'arithmetic',
      'chains.train_problems': 8,
      'chains.train_samples': 4,
      'active.budget': 2,
    },
  )


@pytest.fixture
def workdir(tmp_path):
  return Workdir.open(str(tmp_path / 'run'), {}, {})


def read_chains(settings, workdir):
  return read_all(settings.chains, 0, workdir, print)


def test_chains_without_a_known_outcome_are_left_out(settings, workdir):
  outcomes = [True, False, None, False]
  chains = [
    Chain('p?', ('s',), '1', outcome, meta={'id': f'{i}'})
    for i, outcome in enumerate(outcomes)
  ]
  active = dataclasses.replace(settings.active, budget=8, method='random')
  settings = dataclasses.replace(settings, active=active)
  selected, report = select(chains, settings, workdir)
  assert {chain.meta['id'] for chain in selected} == {'0', '1', '3'}
  assert report['unchecked'] == 1
  with pytest.raises(UserError, match='no outcome'):
    select(chains[2:3], settings, workdir)


def test_a_resumed_job_needs_no_prm(settings, workdir):
  chains = read_chains(settings, workdir)
  selected, report = select(chains, settings, workdir)
  assert len(selected) == report['selected'] == 16
  assert [c.meta['active']['rank'] for c in selected] == [0, 1] * 8
  written = (workdir / 'selection.json').read_bytes()
  assert len(json.loads(written)['scores']) == 16

  shutil.rmtree(settings.prm.path)
  active = dataclasses.replace(settings.active, batch_size=1)
  settings = dataclasses.replace(settings, active=active)
  assert select(chains, settings, workdir) == (selected, report)
  assert (workdir / 'selection.json').read_bytes() == written

  # Other chains are another selection, unless the workdir has begun with one.
  with pytest.raises(UserError, match='prm'):
    select(chains[:-1], settings, workdir)
  (workdir / 'data.json').write_text('{}')
  with pytest.raises(UserError, match='was made of other chains than'):
    select(chains[:-1], settings, workdir)
  assert select(chains, settings, workdir) == (selected, report)


def test_scores_are_no_part_of_the_chains(settings, workdir):
  """They differ between machines, and the chains are a job's identity."""
  selected, _ = select(read_chains(settings, workdir), settings, workdir)
  assert {frozenset(c.meta['active']) for c in selected} == {
    frozenset({'method', 'rank'})
  }


def test_sources_have_the_names_of_their_jobs(tmp_path, workdir):
  jobs = {'a': 'rollouts', 'b': 'rollouts', 'c': 'judge'}
  chains = [
    Chain('p', ('s',), labels=(StepLabel(1.0, 'human'),), meta={'id': 'x'})
  ]
  for name, source in jobs.items():
    dataset = chain_sets.write(tmp_path / name, 'labels', chains)
    results = {'manifest': {'source': source}, 'dataset': dataset}
    (tmp_path / name / 'results.json').write_text(json.dumps(results))

  def names(other, **changes):
    settings = configs.settings(
      'label_math',
      'consensus',
      agrees_with=str(tmp_path / other),
      **{'chains.workdir': str(tmp_path / 'a')},
      **{f'consensus.{name}': value for name, value in changes.items()},
    )
    ((chain,), _) = select(chains, settings, workdir)
    return chain.meta['consensus']

  assert names('c') == ['rollouts', 'judge']
  assert names('b') == ['rollouts', 'rollouts of agrees_with']
  assert names('b', first='x', second='y') == ['x', 'y']
  with pytest.raises(UserError, match=r"second='rollouts': expected another"):
    names('b', second='rollouts')


@pytest.mark.parametrize(
  ('scored', 'why'),
  [
    (ScoredSteps((0.5,), 1, lost=1), 'the same command asks again'),
    (ScoredSteps((0.5,), 1, refused=1), 'refused a chain of 1 steps'),
    (ScoredSteps((), 1), 'refused a chain of 1 steps'),
  ],
)
def test_what_a_prm_does_not_score_selects_nothing(scored, why):
  class Prm:
    name, counts_flops = 'some', False

    def score(self, requests):
      return [[scored] for _ in requests]

  with pytest.raises(UserError, match=why):
    TextScorer(Prm()).score_many([('p', ['s'])])
