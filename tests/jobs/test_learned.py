"""Models that were trained on what they are judged by are refused."""

import json

import pytest

from prm_jax.data.critiques.questions import plain_question
from prm_jax.data.datasets import load_dataset
from prm_jax.data.problems import choose_problems
from prm_jax.jobs.learned import (
  check_outcome_model,
  check_unseen,
  learned_problems,
)
from prm_jax.jobs.rl_problems import read_tasks
from prm_jax.jobs.search import warn_of_seen
from prm_jax.jobs.settings.critics import GenerativeConfig
from prm_jax.jobs.settings.rl_prms import RlPrmConfig
from prm_jax.runtime.errors import UserError
from tests.shared.configs import raw, settings


@pytest.mark.parametrize(
  ('variants', 'name'),
  # Splits are one draw, of which dev or test is cut off first.
  [('grpo,tiny', 'test_problems'), ('grpo,words,tiny', 'dev_problems')],
)
def test_models_that_were_trained_on_the_test_are_refused(
  tmp_path, variants, name
):
  if 'words' in variants:
    pytest.importorskip('reasoning_gym', reason="needs 'prm_jax[words]'")
  tasks = read_tasks(settings('rl_math', variants), print)
  texts = [problem.text for problem in (*tasks.held_out, *tasks.test)]
  data = raw('rl_math', variants)['problems']
  for count, known in ((8, False), (4, True)):
    config = {'seed': 0, 'data': data | {name: count}}
    (tmp_path / 'config.json').write_text(json.dumps(config))
    if known:
      with pytest.raises(UserError, match='was trained on 4 of the 12 problem'):
        check_unseen(texts, tmp_path, data['kind'])
    else:
      check_unseen(texts, tmp_path, data['kind'])
    # A critic was trained on a problem if it was on a chain of it.
    questions = [plain_question('r_prm', text, ('1',)) for text in texts]
    if known:
      with pytest.raises(UserError, match='was trained on 4 of the 12 problem'):
        check_unseen(questions, tmp_path, data['kind'])
    else:
      check_unseen(questions, tmp_path, data['kind'])
    # Problems of another kind are others.
    check_unseen(texts, tmp_path, 'file')
  # What published models were trained on is not known.
  (tmp_path / 'config.json').write_text('{"model_type": "qwen2"}')
  for published in (tmp_path, 'hf://owner/name', ''):
    check_unseen(texts, published, data['kind'])


def write_config(folder, task, **sections):
  folder.mkdir()
  config = {'seed': 0, 'task': task, **sections}
  (folder / 'config.json').write_text(json.dumps(config))
  return str(folder)


@pytest.mark.parametrize(
  ('values', 'read'),
  [
    ({'kind': 'workdir'}, ('/a', '/b')),
    ({'kind': 'implicit', 'also': ()}, ('/a',)),
    ({'kind': 'generative', 'also': ()}, ('/c',)),
    ({'kind': 'exact', 'also': ()}, ()),
    ({'kind': 'none', 'also': ()}, ()),
  ],
)
def test_models_that_an_rl_job_does_not_ask_may_know_its_test(values, read):
  critic = GenerativeConfig(path='/c')
  given = {'path': '/a', 'also': ('/b',), 'generative': critic} | values
  assert RlPrmConfig(**given).trained == read


def test_problems_of_mixed_lengths_are_those_that_were_drawn(tmp_path):
  data = raw('policy_math', 'tiny')['data'] | {'shortest': 2}
  policy = write_config(tmp_path / 'policy', 'policy', data=data)
  mixed = settings('policy_math', 'tiny', **{'data.shortest': 2})
  dataset = load_dataset(mixed.data, 0, tmp_path / 'job', print)
  trained = {chain.problem for chain in dataset.train}
  assert learned_problems(policy, 'arithmetic') == trained
  uncut = raw('policy_math', 'tiny')['data']
  other = write_config(tmp_path / 'other', 'policy', data=uncut)
  assert learned_problems(other, 'arithmetic') != trained


def test_a_baseline_learned_the_problems_of_its_run(tmp_path):
  data = raw('prm_math', 'tiny')['data']
  prm = write_config(tmp_path / 'prm', 'prm', data=data)
  baseline = f'{prm}/orm'
  trained = learned_problems(prm, 'arithmetic')
  assert len(trained) == 128
  assert learned_problems(baseline, 'arithmetic') == trained
  with pytest.raises(UserError, match='was trained on 128 of the 128 problems'):
    check_unseen([*trained], baseline, 'arithmetic')
  # On the dev and test problems of its run it may be judged.
  job = settings('evaluate_math', 'tiny', **{'prm.path': baseline})
  dataset = load_dataset(job.data, 0, tmp_path / 'job', print)
  chains = (*dataset.dev, *dataset.evaluations['arithmetic'])
  check_unseen([chain.problem for chain in chains], baseline, 'arithmetic')


def test_a_search_says_what_its_models_were_trained_on(tmp_path):
  data = raw('prm_math', 'tiny')['data']
  prm = write_config(tmp_path / 'prm', 'prm', data=data)
  policy = write_config(tmp_path / 'policy', 'policy', data=data)
  given = {'prm.kind': 'workdir', 'prm.path': prm}
  given |= {'policy.kind': 'workdir', 'policy.workdir': policy}
  more = data['dev_problems'] + 3  # three of those that were trained on

  def warned(variants, **values):
    values = {f'problems.{name}': value for name, value in values.items()}
    job = settings('search_math', variants, **given, **values)
    found = []
    problems = choose_problems(job.problems, job.seed)
    warn_of_seen(job, problems, found.append)
    return [line.split(' was trained on ')[0] for line in found]

  wanted = [f'WARNING: {policy}', f'WARNING: {prm}']
  for split, count in (('dev', 0), ('test', 0), ('train', 0)):
    assert warned('beam,tiny', split=split, count=count) == []
  found = {'split': 'dev', 'dev_problems': more, 'count': 0}
  assert warned('beam,tiny', **found) == wanted
  assert warned('majority,tiny', **found) == wanted[:1]  # asks no PRM
  # Recorded chains are those of the policy that was sampled.
  wrote = {'kind': 'workdir', 'workdir': policy}
  given['policy.kind'] = 'recorded'
  given['policy.workdir'] = write_config(
    tmp_path / 'samples', 'sample', policy=wrote
  )
  assert warned('best_of_n,tiny', **found) == wanted


def test_a_model_of_outcomes_is_not_judged_by_its_steps(tmp_path):
  outcomes = {'supervision': 'outcome'}
  orm = write_config(tmp_path / 'orm', 'prm', targets=outcomes)
  prm = write_config(
    tmp_path / 'prm', 'prm', targets={'supervision': 'process'}
  )
  for known in (orm, f'{prm}/orm', f'{prm}/orm/'):
    with pytest.raises(UserError, match='trained on outcomes alone'):
      check_outcome_model(known)
  # A published model, and a folder that no job wrote, are not known.
  for other in (prm, '', 'hf://owner/orm', str(tmp_path / 'no' / 'orm')):
    check_outcome_model(other)


def test_problems_whose_chains_were_labelled_are_learned(tmp_path):
  """The chains of a domain, or those that a job sampled of its problems."""
  problems = raw('sample_math', 'tiny')['problems']
  samples = write_config(tmp_path / 'samples', 'sample', problems=problems)
  chains = raw('label_math', 'rollouts,tiny')['chains']
  drawn = write_config(tmp_path / 'drawn', 'label', chains=chains)
  chains = chains | {'kind': 'workdir', 'workdir': samples}
  sampled = write_config(tmp_path / 'sampled', 'label', chains=chains)
  data = raw('prm_math', 'tiny')['data']
  for labels, expected in ((drawn, 128), (sampled, 16)):
    prm = tmp_path / f'prm_{expected}'
    write_config(prm, 'prm', data=data | {'labels': labels})
    found = learned_problems(str(prm), 'arithmetic')
    assert found == learned_problems(labels, 'arithmetic')
    assert len(found) == expected
  some = write_config(
    tmp_path / 'some', 'sample', problems=problems | {'first': 4, 'count': 8}
  )
  first_8 = learned_problems(some, 'arithmetic')
  assert len(first_8) == 8 and first_8 < learned_problems(samples, 'arithmetic')
  # The labels may be gone, or on another machine.
  data |= {'labels': str(tmp_path / 'none')}
  gone = write_config(tmp_path / 'gone', 'prm', data=data)
  assert learned_problems(gone, 'arithmetic') == set()
