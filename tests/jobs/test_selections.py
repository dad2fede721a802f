"""What a PRM selected is selected once; the sources that agree have names."""

import dataclasses
import json
import shutil

import pytest

from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.inference.protocols import ScoredSteps
from prm_jax.jobs.journal import Journal
from prm_jax.jobs.label import read_all
from prm_jax.jobs.selection_scores import keep, unscored
from prm_jax.jobs.selections import select
from prm_jax.labels.active import ActiveConfig
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


def test_chains_without_any_known_outcome_are_refused_before_a_prm_is_opened(
  settings, workdir
):
  shutil.rmtree(settings.prm.path)
  chains = [Chain('p?', ('s',), '1', meta={'id': '0'})]
  with pytest.raises(UserError, match='none of 1 chains has a known outcome'):
    select(chains, settings, workdir)


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
  (tmp_path / 'a again').symlink_to(tmp_path / 'a')
  for same in ('a', 'a again'):
    with pytest.raises(UserError, match=r'is chains\.workdir, and all labels'):
      names(same)


@pytest.mark.parametrize('batch_size', [8, 1024])
def test_an_interrupted_selection_scores_the_rest(
  settings, workdir, batch_size
):
  active = dataclasses.replace(settings.active, batch_size=batch_size)
  settings = dataclasses.replace(settings, active=active)
  chains = read_chains(settings, workdir)
  selected = select(chains, settings, workdir)
  (path,) = (workdir / 'selection').glob('*/*.jsonl')
  written, lines = path.read_bytes(), path.read_bytes().splitlines(True)
  assert len(lines) == 1 + 32

  # Between two batches: the others are scored, and these are not.
  (workdir / 'selection.json').unlink()
  done = lines[: 1 + 16] if batch_size == 8 else lines
  path.write_bytes(b''.join(done) + b'{"ind')
  assert select(chains, settings, workdir) == selected
  assert path.read_bytes() == written

  # While a batch was written: it is scored once more, in the same company.
  (workdir / 'selection.json').unlink()
  path.write_bytes(b''.join(lines[: 1 + 19]))
  assert select(chains, settings, workdir) == selected
  again = lines[17:] if batch_size == 8 else lines[1:]
  assert path.read_bytes().splitlines(True) == [*lines[:20], *again]


def test_chains_that_a_prm_cannot_score_are_left_out(settings, workdir):
  chains = read_chains(settings, workdir)
  selected, report = select(chains, settings, workdir)
  assert report['unscored'] == 0
  long = {'id': 'of 45 steps'}
  longer = dataclasses.replace(
    chains[1], steps=chains[1].steps * 9, labels=(), meta=long
  )
  more = [chains[0], longer, *chains[1:]]
  other = workdir.below('other')
  found, report = select(more, settings, other)
  assert [c.steps for c in found] == [c.steps for c in selected]
  assert (report['unscored'], report['chains']) == (1, 32)
  written = json.loads((other / 'selection.json').read_text())
  assert written['unscored'] == ['of 45 steps']
  with pytest.raises(UserError, match='can score none of 1 chains'):
    select([longer], settings, workdir.below('third'))


@pytest.mark.parametrize(
  ('scored', 'why'),
  [
    (ScoredSteps((0.5,), 1, lost=1), "chain 'b' could not be had; the same"),
    (ScoredSteps((float('nan'),), 1), "1 of 3 chains .* first of them 'b'"),
  ],
)
def test_a_chain_at_which_a_selection_ends_is_named(tmp_path, scored, why):
  chains = [Chain('p', ('s',), meta={'id': name}) for name in 'abc']
  path = tmp_path / 'journal'
  with Journal(path, {}) as lines, pytest.raises(UserError, match=why):
    found = [ScoredSteps((0.5,), 1), scored, ScoredSteps((0.25,), 1)]
    keep(lines, chains, found, (4, 5, 6), ActiveConfig())
  # What a server lost costs the others nothing.
  kept = [
    json.loads(line)['index'] for line in path.read_text().split('\n')[1:-1]
  ]
  assert kept == ([4, 6] if scored.lost else [])


def test_a_prm_that_scores_chains_alone_is_asked_for_those_left_only():
  assert unscored(7, {0, 1, 2, 4}, 3, whole=False) == [[3, 5], [6]]
  assert unscored(7, {0, 1, 2, 4}, 3, whole=True) == [[3, 4, 5], [6]]
  assert unscored(3, {0, 1, 2}, 2, whole=True) == []


def test_a_selection_of_other_settings_names_them(settings, workdir):
  chains = read_chains(settings, workdir)
  select(chains, settings, workdir)
  (workdir / 'data.json').write_text('{}')
  path = workdir / 'selection.json'
  made = json.loads(path.read_text())
  made['made_of']['active']['seed'] = 1
  path.write_text(json.dumps(made))
  with pytest.raises(UserError, match=r'other settings \(active.seed\) than'):
    select(chains, settings, workdir)
