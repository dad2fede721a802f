"""Critics from the command line: trained, judged, searched with, improved."""

import json

import pytest

from tests.shared.command_line import run_all, the_error
from tests.shared.smollm2 import open_or_skip

pytestmark = [pytest.mark.job, pytest.mark.slow]

SMALL = '--config.evaluation.resamples=50'


def run(*line):
  [done] = run_all([list(line)])
  assert done.returncode == 0, done.stderr
  return done.stdout


def results(workdir):
  return json.loads((workdir / 'results.json').read_text())['results']


# One operation modulo 3: a critic of it learns in seconds.
EASY = (
  '--config.data.arithmetic.modulus=3',
  '--config.data.arithmetic.operations=2',
  '--config.data.arithmetic.wrong_facts=0.5',
  '--config.data.dev_problems=10',
  '--config.data.test_problems=20',
)


@pytest.fixture(scope='module')
def critics(tmp_path_factory):
  """A critic of each style that has learned, by style."""
  folder = tmp_path_factory.mktemp('critics')
  styles = ('thinkprm', 'genprm', 'r_prm', 'boxed_index', 'genrm')
  for style in styles:
    run(
      f'--config=configs/verifier_math.py:{style},tiny',
      f'--workdir={folder / style}',
      *EASY,
      '--config.data.train_problems=200',
      '--config.data.train_samples=4',
      '--config.model.d_model=64',
      '--config.model.d_ff=128',
      '--config.train.steps=250',
      '--config.train.checkpoint_every=125',
      '--config.optim.lr=1e-2',
    )
  return {style: folder / style for style in styles}


@pytest.mark.parametrize(
  'style', ['thinkprm', 'genprm', 'r_prm', 'boxed_index']
)
def test_a_critic_finds_first_errors(critics, style, tmp_path):
  """Of chains of problems that it was not trained on."""
  run(
    '--config=configs/evaluate_math.py:critic,tiny',
    f'--workdir={tmp_path}',
    f'--config.prm.generative.path={critics[style]}',
    f'--config.prm.generative.style={style}',
    '--config.prm.generative.ask=steps',
    *EASY,
    '--config.evaluation.max_dev_problems=10',
    SMALL,
  )
  found = results(tmp_path)['localisation']['arithmetic']
  assert found['f1'] > 0.9
  shown = [
    json.loads(line)
    for line in (tmp_path / 'chains.jsonl').read_text().splitlines()
  ]
  assert all(
    len(each['critiques']) == len(each['steps']) and all(each['critiques'])
    for each in shown
  )
  assert '<summary>Critique</summary>' in (tmp_path / 'report.html').read_text()


def test_an_outcome_critic_picks_chains(critics, tmp_path):
  run(
    '--config=configs/evaluate_math.py:critic,tiny',
    f'--workdir={tmp_path}',
    f'--config.prm.generative.path={critics["genrm"]}',
    '--config.prm.generative.style=genrm',
    '--config.targets.supervision=outcome',
    *EASY,
    SMALL,
  )
  curves = results(tmp_path)['best_of_n']
  assert curves['orm']['mean'][-1] > curves['random']['mean'][-1] + 0.1
  assert 'localisation' not in results(tmp_path)


def test_it_improves_by_its_verdicts(critics, tmp_path):
  """RL: the reward is whether the verdict is right."""
  flags = [flag.replace('.data.', '.problems.') for flag in EASY]
  run(
    '--config=configs/verifier_math.py:rl,tiny',
    f'--workdir={tmp_path}',
    f'--config.policy.workdir={critics["thinkprm"]}',
    *flags,
    '--config.problems.train_problems=200',
  )
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  accuracy = [json.loads(line).get('train/accuracy') for line in lines]
  assert any(value is not None for value in accuracy)


@pytest.mark.parametrize('job', ['search', 'rl'])
def test_it_scores_steps_for_other_jobs(critics, job, tmp_path):
  flags = [flag.replace('.data.', '.problems.') for flag in EASY]
  critic = (
    '--config.prm.kind=generative',
    f'--config.prm.generative.path={critics["r_prm"]}',
    '--config.prm.generative.style=r_prm',
  )
  if job == 'search':
    run(
      '--config=configs/search_math.py:best_of_n,tiny',
      f'--workdir={tmp_path}',
      *critic,
      *flags,
      *(
        f.replace('.data.', '.policy.solver.').replace('.arithmetic', '')
        for f in EASY[:3]
      ),
      '--config.problems.train_problems=200',
    )
    found = results(tmp_path)['search']
    assert found['problems'] == 8
    assert found['cost']['scored_tokens']['mean'] > 0
    return
  policy = tmp_path / 'policy'
  run(
    '--config=configs/policy_math.py:tiny',
    f'--workdir={policy}',
    *EASY,
    '--config.data.train_problems=100',
  )
  run(
    '--config=configs/rl_math.py:grpo,tiny',
    f'--workdir={tmp_path / "rl"}',
    f'--config.policy.workdir={policy}',
    *critic,
    *flags,
    '--config.problems.train_problems=100',
  )
  assert (tmp_path / 'rl/results.json').is_file()


def test_a_critic_of_other_words_is_named(critics, tmp_path):
  """It is asked about deductions, for which it has no words."""
  line = [
    '--config=configs/evaluate_math.py:critic,logic,tiny',
    f'--workdir={tmp_path}',
    f'--config.prm.generative.path={critics["thinkprm"]}',
  ]
  [done] = run_all([line])
  error = the_error(done)
  assert 'cannot be asked' in error
  assert 'is not a word of the arithmetic_critic tokenizer' in error
  [done] = run_all([[*line, '--config.prm.generative.style=r_prm']])
  assert 'learned critiques in the style thinkprm, and is asked for r_prm' in (
    the_error(done)
  )


@pytest.mark.parametrize(
  'style', ['thinkprm', 'genprm', 'r_prm', 'boxed_index']
)
def test_smollm2_as_a_critic(style, tmp_path):
  """A real language model that never learned to be one."""
  open_or_skip()
  run(
    '--config=configs/evaluate_math.py:critic,tiny',
    f'--workdir={tmp_path}',
    '--config.prm.generative.critic=base',
    '--config.prm.generative.path=smollm2',
    '--config.prm.generative.plain=False',
    f'--config.prm.generative.style={style}',
    '--config.prm.generative.ask=steps',
    '--config.prm.generative.separator=Ċ',
    '--config.prm.generative.end=<|im_end|>',
    '--config.prm.generative.max_length=768',
    '--config.prm.generative.sampling.max_tokens=32',
    '--config.prm.generative.sampling.slots=8',
    '--config.data.arithmetic.operations=2',
    '--config.data.test_samples=2',
    '--config.data.dev_samples=1',
    '--config.evaluation.ns=(1, 2)',
    '--config.evaluation.max_problems=2',
    '--config.evaluation.max_dev_problems=2',
    SMALL,
  )
  scores = [
    score
    for line in (tmp_path / 'step_scores.jsonl').read_text().splitlines()
    for score in json.loads(line)['scores']
  ]
  assert scores
  assert all(0 <= score <= 1 for score in scores)
