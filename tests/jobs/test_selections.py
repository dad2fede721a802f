"""What a PRM selected is selected once; who agrees is told by name."""

import json
import shutil

import pytest

from configs.label_math import get_config
from prm_jax.data import chain_sets
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.jobs import label as label_job
from prm_jax.jobs.selections import by_active, by_consensus
from prm_jax.runtime.errors import UserError


@pytest.fixture
def config(finished, tmp_path):
  """A PRM that can be deleted, and four chains of each of eight problems."""
  prm = shutil.copytree(finished, tmp_path / 'prm')
  config = get_config('active,tiny').to_dict() | {'prm': str(prm)}
  config['chains'] |= {
    'kind': 'arithmetic',
    'train_problems': 8,
    'train_samples': 4,
  }
  config['active']['budget'] = 2
  return config


def test_a_job_that_goes_on_needs_no_prm(config, tmp_path):
  chains = label_job.read_all(config['chains'], 0, tmp_path, print)
  workdir = tmp_path / 'run'
  workdir.mkdir()
  selected, report = by_active(chains, config, workdir)
  assert len(selected) == report['selected'] == 16
  assert [c.meta['active']['rank'] for c in selected] == [0, 1] * 8
  written = (workdir / 'selection.json').read_bytes()
  assert len(json.loads(written)['scores']) == 16

  shutil.rmtree(config['prm'])
  config['active']['batch_size'] = 1
  assert by_active(chains, config, workdir) == (selected, report)
  assert (workdir / 'selection.json').read_bytes() == written

  # Other chains are another selection, unless the workdir has begun with one.
  with pytest.raises(UserError, match='prm'):
    by_active(chains[:-1], config, workdir)
  (workdir / 'data.json').write_text('{}')
  with pytest.raises(UserError, match='was made of other chains than'):
    by_active(chains[:-1], config, workdir)
  assert by_active(chains, config, workdir) == (selected, report)


def test_sources_have_the_names_of_their_jobs(tmp_path):
  jobs = {'a': 'rollouts', 'b': 'rollouts', 'c': 'judge'}
  chains = [
    Chain('p', ('s',), labels=(StepLabel(1.0, 'human'),), meta={'id': 'x'})
  ]
  for name, source in jobs.items():
    dataset = chain_sets.write(tmp_path / name, 'labels', chains)
    results = {'manifest': {'source': source}, 'dataset': dataset}
    (tmp_path / name / 'results.json').write_text(json.dumps(results))

  def names(other, **changes):
    config = get_config('consensus').to_dict()
    config['chains']['workdir'] = str(tmp_path / 'a')
    config['agrees_with'] = str(tmp_path / other)
    config['consensus'] |= changes
    ((chain,), _) = by_consensus(chains, config, tmp_path)
    return chain.meta['consensus']

  assert names('c') == ['rollouts', 'judge']
  assert names('b') == ['rollouts', 'rollouts of agrees_with']
  assert names('b', first='x', second='y') == ['x', 'y']
  with pytest.raises(UserError, match=r"second='x' is consensus\.first too"):
    names('b', first='x', second='x')


def test_scores_are_no_part_of_the_chains(config, tmp_path):
  """On another machine they differ, and the chains are a job's identity."""
  chains = label_job.read_all(config['chains'], 0, tmp_path, print)
  selected, _ = by_active(chains, config, tmp_path)
  assert {frozenset(c.meta['active']) for c in selected} == {
    frozenset({'method', 'rank'})
  }
