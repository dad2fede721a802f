"""Critics from the command line: trained, judged, searched with, improved."""

import functools
import json

import pytest

from prm_jax.inference.generative_prm import CritiqueConfig, GenerativePrm
from prm_jax.inference.loading import load_policy
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.jobs.critics import check_style
from prm_jax.runtime.errors import UserError
from tests.serve.live_server import LiveServer
from tests.shared.command_line import run_all, the_error
from tests.shared.several_processes import process_flags
from tests.shared.smollm2 import open_or_skip

pytestmark = [pytest.mark.job, pytest.mark.slow]

SMALL = '--config.evaluation.resamples=50'


def run(*line):
  [done] = run_all([list(line)])
  assert done.returncode == 0, done.stderr
  return done.stdout


def results(workdir):
  return json.loads((workdir / 'results.json').read_text())['results']


STYLES = ('thinkprm', 'genprm', 'r_prm', 'boxed_index', 'genrm')
# Critics that have learned next to nothing write to the end of their room.
SHORT = '--config.prm.generative.sampling.max_tokens=24'


@pytest.fixture(scope='module')
def critics(tmp_path_factory):
  """A critic of each style, by style; none has learned much in six updates."""
  folder = tmp_path_factory.mktemp('critics')
  lines = [
    [
      f'--config=configs/verifier_math.py:{style},tiny',
      f'--workdir={folder / style}',
    ]
    for style in STYLES
  ]
  for done in run_all(lines):
    assert done.returncode == 0, done.stderr
    assert 'agree with the labels' in done.stdout
  return {style: folder / style for style in STYLES}


@pytest.mark.parametrize('style', STYLES)
def test_a_critic_is_judged_as_a_prm(critics, style, tmp_path):
  """Its critiques are in the report, and what says nothing is counted."""
  of_outcome = style == 'genrm'
  said = run(
    '--config=configs/evaluate_math.py:critic,tiny',
    f'--workdir={tmp_path}',
    f'--config.prm.generative.path={critics[style]}',
    f'--config.prm.generative.style={style}',
    f'--config.prm.generative.ask={"chain" if of_outcome else "steps"}',
    *(('--config.targets.supervision=outcome',) if of_outcome else ()),
    SHORT,
    SMALL,
  )
  found = results(tmp_path)
  assert ('localisation' in found) != of_outcome
  assert found['cost']['flops'] > 0
  assert found['cost']['scored_tokens'] > 0
  # Only boxes cannot be read of a critic that tells how likely its words are.
  unread = found['cost']['unread_critiques']
  assert bool(unread) == ('WARNING:' in said)
  assert not unread or style == 'boxed_index'
  shown = [
    json.loads(line)
    for line in (tmp_path / 'chains.jsonl').read_text().splitlines()
  ]
  wanted = 1 if of_outcome else None
  assert all(
    len(each['critiques']) == (wanted or len(each['steps'])) for each in shown
  )


def test_it_improves_by_its_verdicts(critics, tmp_path):
  """RL: the reward is whether the verdict is right."""
  run(
    '--config=configs/verifier_math.py:rl,tiny',
    f'--workdir={tmp_path}',
    f'--config.policy.workdir={critics["thinkprm"]}',
    '--config.sampling.max_tokens=24',
  )
  chains = [json.loads(line) for line in (tmp_path / 'chains.jsonl').open()]
  assert chains
  assert all(c['problem'].startswith('check thinkprm | ') for c in chains)


@pytest.mark.parametrize('style', ['r_prm', 'boxed_index'])
def test_a_server_answers_with_its_scores(critics, style):
  """A chain that grew costs its new step; what it cannot read is refused."""
  own = GenerativePrm(
    load_policy(critics[style], SamplingConfig(temperature=0.0)),
    CritiqueConfig(style=style),
  )
  approx = functools.partial(pytest.approx, abs=1e-5)
  problem, steps = 'mod 10 : 7 * 3 + 4', ('7 * 3 = 1', '1 + 4 = 5')
  [[wanted]] = own.score([Scoring(problem, steps)])
  server = LiveServer(critics[style], '--warm').wait()
  try:
    status, first = server.score((problem, steps[:1]))
    assert status == 200
    assert first['data'][0]['scores'] == approx(wanted.scores[:1])
    _, grown = server.score((problem, steps))
    assert grown['data'][0]['scores'] == approx(wanted.scores)
    told = [reply['usage']['tokens'] for reply in (first, grown)]
    assert sum(told) == wanted.tokens
    assert min(told) > 0
    assert grown['usage']['cached_tokens'] == 0
    for asked, words in (
      ((problem, ['7 * 3 = 1!']), '!'),
      ((problem, steps * 99), 'leaves no room for an answer'),
    ):
      status, reply = server.score(asked)
      assert status == 400
      assert words in reply['error']['message']
    status, reply = server.post('/pooling', {'input': problem, 'model': 'prm'})
    assert (status, 'send them to /v1/steps' in str(reply)) == (400, True)
    counted = 'prm_jax_unread_critiques_total{prm="prm"}'
    _, numbers = server.get('/metrics')
    assert (f'{counted} {wanted.unread:.1f}' in numbers.decode()) == bool(
      wanted.unread
    )
    assert not wanted.unread or style == 'boxed_index'
  finally:
    code, said = server.stop()
  assert code == 0
  assert said and all(json.loads(line) for line in said.splitlines())


@pytest.mark.parametrize('job', ['search', 'rl'])
def test_it_scores_steps_for_other_jobs(critics, job, tmp_path):
  critic = (
    '--config.prm.kind=generative',
    f'--config.prm.generative.path={critics["r_prm"]}',
    '--config.prm.generative.style=r_prm',
    SHORT,
  )
  if job == 'search':
    run(
      '--config=configs/search_math.py:best_of_n,tiny',
      f'--workdir={tmp_path}',
      *critic,
    )
    found = results(tmp_path)['search']
    assert found['problems'] == 8
    assert found['cost']['scored_tokens']['mean'] > 0
    return
  policy = tmp_path / 'policy'
  run('--config=configs/policy_math.py:tiny', f'--workdir={policy}')
  run(
    '--config=configs/rl_math.py:grpo,tiny',
    f'--workdir={tmp_path / "rl"}',
    f'--config.policy.workdir={policy}',
    '--config.sampling.max_tokens=12',
    *critic,
  )
  assert (tmp_path / 'rl/results.json').is_file()


def test_a_critic_of_other_words_is_named(critics, tmp_path):
  """It is asked about deductions, for which it has no words."""
  line = [
    '--config=configs/evaluate_math.py:critic,logic,tiny',
    f'--workdir={tmp_path / "words"}',
    f'--config.prm.generative.path={critics["thinkprm"]}',
  ]
  [done] = run_all([line])
  error = the_error(done)
  assert 'cannot be asked' in error
  assert 'is not a word of the arithmetic_critic tokenizer' in error
  line[1] = f'--workdir={tmp_path / "other"}'
  [done] = run_all([[*line, '--config.prm.generative.style=boxed_index']])
  assert (
    'learned critiques in the style thinkprm, and is asked for boxed_index'
    in (the_error(done))
  )


def test_a_folder_without_a_critic_is_told(tmp_path):
  with pytest.raises(UserError, match=f'{tmp_path} holds no critic'):
    check_style(str(tmp_path), 'thinkprm')


def test_smollm2_as_a_critic_that_writes_code(tmp_path):
  """A real language model that never learned to be one.

  A command of the docs asks it for a whole chain (tests/docs/test_commands.py).
  """
  open_or_skip()
  run(
    '--config=configs/evaluate_math.py:critic,tiny',
    f'--workdir={tmp_path}',
    '--config.prm.generative.critic=base',
    '--config.prm.generative.path=smollm2',
    '--config.prm.generative.plain=False',
    '--config.prm.generative.style=genprm',
    '--config.prm.generative.ask=steps',
    '--config.prm.generative.separator=Ċ',
    '--config.prm.generative.end=<|im_end|>',
    '--config.prm.generative.max_length=768',
    '--config.prm.generative.sampling.max_tokens=16',
    '--config.prm.generative.sampling.slots=8',
    '--config.data.arithmetic.operations=2',
    '--config.data.arithmetic.slip=0.3',
    '--config.data.test_samples=2',
    '--config.data.dev_samples=1',
    '--config.evaluation.ns=(1, 2)',
    '--config.evaluation.max_problems=2',
    '--config.evaluation.max_dev_problems=3',
    SMALL,
  )
  scores = [
    score
    for line in (tmp_path / 'step_scores.jsonl').read_text().splitlines()
    for score in json.loads(line)['scores']
  ]
  assert scores
  assert all(0 <= score <= 1 for score in scores)


def test_two_processes_select_chains_by_one_critic(critics, tmp_path):
  """Process 0 asks it and keeps what it said; the other waits for that."""
  line = [
    '--config=configs/label_math.py:active,tiny',
    f'--workdir={tmp_path}',
    '--config.prm.kind=generative',
    f'--config.prm.generative.path={critics["r_prm"]}',
    '--config.prm.generative.style=r_prm',
    '--config.chains.kind=arithmetic',
    '--config.chains.train_problems=4',
    '--config.chains.train_samples=4',
    SHORT,
  ]
  together = run_all(
    [[*line, *flags] for flags in process_flags(2)], together=True
  )
  for done in together:
    assert done.returncode == 0, done.stderr
  assert json.loads((tmp_path / 'selection.json').read_text())['indices']
