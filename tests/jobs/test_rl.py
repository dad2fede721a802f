"""The RL job from the command line: trained, watched, killed and resumed."""

import json
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from prm_jax.inference.loading import load_policy
from prm_jax.inference.protocols import Request
from prm_jax.inference.sampler import SamplingConfig
from tests.shared import command_line
from tests.shared.command_line import (
  SMALL_POLICY,
  contents,
  run_all,
  the_error,
)
from tests.shared.saved_runs import load_state, read_metrics, saved_steps
from tests.shared.several_processes import process_flags, wait_for_all

pytestmark = [pytest.mark.job, pytest.mark.slow]

# The domain of the small policy: one step, modulus 3, and a solver that slips
# so often that there is something to learn of every problem.
SLIPS = ('arithmetic.slip=0.4', 'arithmetic.wrong_facts=0.0')
DOMAIN = (
  '--config.problems.arithmetic.modulus=3',
  '--config.problems.arithmetic.operations=1',
  *(f'--config.problems.{x}' for x in SLIPS),
  '--config.problems.train_problems=15',
  '--config.problems.dev_problems=4',
  '--config.problems.test_problems=8',
)
SMALL = (
  *DOMAIN,
  '--config.held_out.problems=4',
  '--config.held_out.samples=8',
  '--config.test.problems=0',
  '--config.train.problems=4',
  '--config.train.samples=8',
  '--config.train.evaluate_every=5',
  '--config.train.checkpoint_every=5',
  '--config.optim.lr=5e-4',
  '--config.optim.warmup=1',
  '--config.optim.schedule=constant',
  '--config.sampling.slots=32',
)
EXACT = '--config=configs/rl_math.py:grpo,exact,tiny'
REFUSED = {
  'policy.workdir=': "config.policy.workdir='': expected the --workdir of a t",
  'policy.workdir=/no/where': 'holds no model.json of a training run',
  'prm.kind=workdir': "config.prm.path='': expected the --workdir of a trained",
  'train.microbatches=5': 'a minibatch of 32 chains does not divide into 5',
  'sampling.devices=1': 'config.sampling.devices=1: leaves none of 1 devices',
}


@pytest.fixture(scope='module')
def policy(tmp_path_factory):
  folder = tmp_path_factory.mktemp('policy') / 'small'
  slips = (f'--config.data.{x}' for x in SLIPS)
  slowly = (
    '--config.optim.lr=3e-3',
    '--config.train.steps=300',
    '--config.train.checkpoint_every=300',
  )
  [done] = run_all([[*SMALL_POLICY, *slips, *slowly, f'--workdir={folder}']])
  assert done.returncode == 0, done.stderr
  return folder


def flags(policy, workdir, *more, updates=30, config=EXACT):
  return [
    config,
    *SMALL,
    f'--config.policy.workdir={policy}',
    f'--config.train.updates={updates}',
    *more,
    f'--workdir={workdir}',
  ]


# With so few updates the step rewards must count fully.
STEPS = '--config.reward.weight=1'
# Name of a run -> variants of the config, and flags.
PRIME = (
  'prime',
  '--config.optim.lr=1e-3',
  '--config.prm.online.lr=1e-3',
  '--config.train.microbatches=2',
)
RUNS = {
  'grpo': ('grpo,exact', STEPS),
  'rloo': (
    'rloo,exact',
    STEPS,
    '--config.prm.exact=value',
    '--config.reward.kl_weight=0.01',
    '--config.train.minibatches=4',
    '--config.train.kl_stop=1e-9',
  ),
  'spread': (
    'grpo,exact',
    STEPS,
    '--config.train.updates=4',
    '--config.train.microbatches=2',
    '--config.cpu_devices=4',
  ),
  # A value head has to learn too, so more chains are needed.
  'ppo': (
    'ppo,exact',
    STEPS,
    '--config.train.updates=60',
    '--config.train.epochs=2',
    '--config.train.minibatches=1',
    '--config.train.samples=32',
    '--config.sampling.slots=128',
  ),
  'outcome': ('grpo,outcome',),
  'prime': PRIME,
  'stale': (*PRIME, '--config.train.staleness=1'),
  # One device trains, the other samples and scores.
  'apart': (
    *PRIME,
    '--config.train.staleness=1',
    '--config.cpu_devices=2',
    '--config.sampling.devices=1',
  ),
  'lora': (
    'grpo,exact',
    STEPS,
    '--config.lora.rank=8',
    '--config.reference.param_dtype=bfloat16',
    '--config.reference.offload=True',
  ),
}


def job(name, policy, workdir):
  """The command line of one of RUNS."""
  variants, *more = RUNS[name]
  config = f'--config=configs/rl_math.py:{variants},tiny'
  return flags(policy, workdir, *more, config=config)


@pytest.fixture(scope='module')
def runs(policy, tmp_path_factory):
  """Runs the job with each algorithm, and with all bad values."""
  folder = tmp_path_factory.mktemp('rl')
  lines = {name: job(name, policy, folder / name) for name in RUNS}
  lines |= {
    name: flags(policy, folder / f'refused_{i}', f'--config.{name}')
    for i, name in enumerate(REFUSED)
  }
  finished = run_all(list(lines.values()))
  return folder, dict(zip(lines, finished, strict=True))


@pytest.mark.parametrize('name', REFUSED)
def test_a_bad_value_is_one_line(runs, name):
  folder, finished = runs
  assert re.search(REFUSED[name], the_error(finished[name]))
  # Nothing is written: the corrected command may have the same workdir.
  assert not contents(folder / f'refused_{[*REFUSED].index(name)}')


def results_of(workdir):
  return json.loads((workdir / 'results.json').read_text())


@pytest.mark.parametrize('name', ['grpo', 'rloo', 'ppo', 'outcome', 'lora'])
def test_it_learns(runs, name):
  """Measured on training problems: so small a model learns no others."""
  folder, finished = runs
  assert finished[name].returncode == 0, finished[name].stderr
  learned = [x for x in read_metrics(folder / name) if 'loss' in x]
  right = [line['accuracy'] for line in learned]
  half, chains = (30, 128) if name == 'ppo' else (15, 32)
  assert len(right) == 2 * half
  # Either half has every problem equally often.
  assert np.mean(right[half:]) > np.mean(right[:half])
  assert all(np.isfinite(list(line.values())).all() for line in learned)
  assert learned[-1]['chains'] == 2 * half * chains
  if name in ('grpo', 'outcome'):
    # The first step on a batch is at the policy that sampled it.
    assert all(line['staleness'] == 0 for line in learned)
    assert all(line['clipped'] == 0 for line in learned)
    assert all(abs(line.get('kl_to_sampled', 0)) < 1e-6 for line in learned)
  if name == 'rloo':
    # The second minibatch finds that the first has moved the policy; where the
    # first is a group of equal rewards, which moves nothing, a later one does.
    assert max(line['steps_left_out'] for line in learned) == 2
    assert all(
      line['steps_left_out'] == 2 or line['idle_groups'] for line in learned
    )
  if name == 'ppo':
    assert learned[-1]['value_loss'] < max(x['value_loss'] for x in learned)


def test_trees_may_be_spread_over_devices(runs):
  """Each has rows of its own; the update is that of one device."""
  folder, finished = runs
  assert finished['spread'].returncode == 0, finished['spread'].stderr
  alone, spread = (
    [x for x in read_metrics(folder / name) if 'loss' in x]
    for name in ('grpo', 'spread')
  )
  assert len(spread) == 4
  for one, four in zip(alone[:4], spread, strict=True):
    for name in ('grad_norm', 'entropy', 'accuracy'):
      np.testing.assert_allclose(four[name], one[name], rtol=1e-4)


def test_two_processes_learn_what_one_with_two_devices_does(policy, tmp_path):
  """Sampled chains to the token; losses but for the order of sums."""
  few = '--config.train.updates=4'
  one = [*job('prime', policy, tmp_path / 'one'), few]
  two = [*job('prime', policy, tmp_path / 'two'), few]
  processes = [command_line.start(*two, *more) for more in process_flags(2)]
  processes.append(command_line.start(*one, '--config.cpu_devices=2'))
  for process in wait_for_all(processes):
    assert process.returncode == 0, process.stderr
  lines = [
    [x for x in read_metrics(tmp_path / name) if 'loss' in x]
    for name in ('one', 'two')
  ]
  assert len(lines[0]) == 4
  exact = 'accuracy', 'flat_tokens', 'unique_tokens', 'steps'
  for a, b in zip(*map(without_times, lines), strict=True):
    assert a.keys() == b.keys()
    assert [a[name] for name in exact] == [b[name] for name in exact]
    for name, value in a.items():
      np.testing.assert_allclose(b[name], value, rtol=1e-4, atol=1e-6)


def test_sampling_may_be_an_update_behind(runs):
  """In a thread on the device that trains, or on a device of its own."""
  folder, finished = runs
  for name in ('stale', 'apart'):
    assert finished[name].returncode == 0, finished[name].stderr
  lines = read_metrics(folder / 'stale')
  learned = [x for x in lines if 'loss' in x]
  # After each checkpoint it starts anew.
  assert [x['staleness'] for x in learned] == [0, 1, 1, 1, 1] * 6
  # The policy of an update earlier is not quite the one that learns.
  apart = [abs(x['kl_to_sampled']) > 1e-6 for x in learned]
  assert not any(apart[::5]) and sum(apart) > 20
  assert without_times(lines) == without_times(read_metrics(folder / 'apart'))
  assert (
    results_of(folder / 'stale')['results']
    == (results_of(folder / 'apart')['results'])
  )


def test_an_implicit_prm_learns_with_the_policy(runs):
  folder, finished = runs
  assert finished['prime'].returncode == 0, finished['prime'].stderr
  lines = read_metrics(folder / 'prime')
  [first] = [x for x in lines if x['step'] == 0]
  assert first['eval/chain_score'] == 0.5
  learned = [x for x in lines if 'loss' in x]
  assert learned[0]['prm_loss'] == pytest.approx(np.log(2), abs=1e-5)
  assert learned[0]['kl_to_reference'] == pytest.approx(0, abs=1e-6)
  assert all(np.isfinite(list(line.values())).all() for line in learned)
  assert learned[-1]['prm_skipped'] == 0 < learned[-1]['prm_lr'] < 1.1e-3
  # Its accuracy is measured on chains before it learns from them.
  seen = [line['prm_accuracy'] for line in learned]
  assert np.mean(seen[7:]) > np.mean(seen[:7])
  rated = [x['eval/chain_score'] for x in lines if 'eval/chain_score' in x]
  assert len(set(rated)) == len(rated)


def test_adapters_learn_and_the_backbone_stays(runs):
  folder, _ = runs
  first, last = (
    load_state(folder / 'lora', step)['params'] for step in (0, -1)
  )
  for name, moved in (('backbone', False), ('lora', True)):
    pairs = zip(*(jax.tree.leaves(x[name]) for x in (first, last)), strict=True)
    assert all(np.any(x != y) == moved for x, y in pairs), name


def test_it_is_watched_and_tested(runs):
  folder, _ = runs
  found = results_of(folder / 'grpo')['results']
  looks = found['rl']['looks']
  assert [look['update'] for look in looks] == [*range(0, 31, 5)]
  assert looks[-1]['chains'] == 30 * 32
  for name in ('before', 'after'):
    assert found['sampling'][name]['problems'] == 8
  rated = [x for x in read_metrics(folder / 'grpo') if 'eval/accuracy' in x]
  assert [x['step'] for x in rated] == [*range(0, 31, 5)]
  for line, look in zip(rated, looks, strict=True):
    assert line['eval/accuracy'] == look['told']['accuracy']
  manifest = results_of(folder / 'grpo')['manifest']
  saved = {x['step']: x['eval/accuracy'] for x in rated[1:]}
  assert saved[manifest['best_update']] == max(saved.values())
  assert found['rl']['tested_after'] == 32 * manifest['best_update']


def test_the_report_shows_it(runs):
  folder, _ = runs
  page = (folder / 'grpo' / 'report.html').read_text()
  assert 'eval/accuracy' in page and 'update 30' in page
  assert 'id="rl"' in page


def test_the_result_is_a_policy(runs):
  folder, _ = runs
  for name in ('grpo', 'ppo', 'prime', 'lora'):
    policy = load_policy(folder / name, SamplingConfig(slots=4, max_tokens=16))
    [[completion]] = policy.complete([Request('mod 3 : 1 + 1', (), 'x', 1)])
    assert completion.tokens > 0 and np.isfinite(completion.logprob)


def without_times(lines):
  return [
    {
      k: v
      for k, v in line.items()
      if k != 'tokens_per_second' and not k.startswith('seconds')
    }
    for line in lines
  ]


@pytest.mark.parametrize('name', ['grpo', 'apart'])
def test_interrupted_runs_have_the_same_bits(runs, policy, tmp_path, name):
  """SIGKILL twice, SIGTERM once: equal parameters, moments and numbers."""
  folder, _ = runs
  args = job(name, policy, tmp_path / 'again')
  for how, beyond in (
    (signal.SIGKILL, 7),
    (signal.SIGTERM, 12),
    (signal.SIGKILL, 22),
  ):
    process = command_line.start(*args)
    path = tmp_path / 'again' / 'metrics.jsonl'
    while process.poll() is None and (
      not path.exists()
      or max([0, *(x['step'] for x in read_metrics(path.parent))]) < beyond
    ):
      time.sleep(0.01)
    process.send_signal(how)
    out, err = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), err
    if how == signal.SIGTERM:
      assert 'the same command resumes from there' in out
  done = command_line.run(*args)
  assert done.returncode == 0, done.stderr
  ours, theirs = tmp_path / 'again', folder / name
  assert saved_steps(ours)[-1] == saved_steps(theirs)[-1] == 30
  a, b = load_state(ours), load_state(theirs)
  assert ('prm' in a) == (name == 'apart')
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
  for file in ('evaluations.jsonl', 'chains.jsonl', 'data.json', 'config.json'):
    assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file
  assert without_times(read_metrics(ours)) == without_times(
    read_metrics(theirs)
  )
  assert results_of(ours)['results'] == results_of(theirs)['results']


def test_an_update_between_two_logged_ones_is_shown_by_the_clock(
  policy, tmp_path
):
  """On a slow machine; here the first line is due at once."""
  impatient = (
    'import sys; from prm_jax import main; from prm_jax.runtime import metrics;'
    'metrics.FIRST_SECONDS = 0.0; main.run(sys.argv)'
  )
  rarely = '--config.train.log_every=100'
  arguments = flags(policy, tmp_path / 'run', rarely, updates=2)
  done = subprocess.run(
    [sys.executable, '-c', impatient, *arguments],
    cwd=command_line.ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert 'rl step 1/2 ' in done.stderr


def test_a_finished_run_changes_no_checkpoint_and_no_result(runs, policy):
  folder, _ = runs
  before = contents(folder / 'grpo' / 'checkpoints')
  results = (folder / 'grpo' / 'results.json').read_bytes()
  [done] = run_all([job('grpo', policy, folder / 'grpo')])
  assert done.returncode == 0, done.stderr
  assert contents(folder / 'grpo' / 'checkpoints') == before
  assert (folder / 'grpo' / 'results.json').read_bytes() == results


def test_a_hacked_reward_raises_the_alarm_and_ends_the_run(policy, tmp_path):
  """It pays for steps alone, and an almost untrained PRM scores them."""
  prm = tmp_path / 'prm'
  [trained] = run_all(
    [
      [
        '--config=configs/prm_math.py:tiny',
        '--config.orm_baseline=False',
        '--config.data.arithmetic.modulus=3',
        '--config.data.arithmetic.operations=1',
        '--config.data.train_problems=15',
        '--config.data.dev_problems=4',
        '--config.data.test_problems=8',
        '--config.data.batch_size=2',
        f'--workdir={prm}',
      ]
    ]
  )
  assert trained.returncode == 0, trained.stderr
  [done] = run_all(
    [
      flags(
        policy,
        tmp_path / 'hacked',
        f'--config.prm.path={prm}',
        '--config.reward.outcome_weight=0.0',
        '--config.reward.weight=1.0',
        '--config.reward.centre=0.0',
        '--config.optim.lr=2e-3',
        '--config.advantage.process=chain',
        # Ten problems that the policy has not learned from, and few looks.
        '--config.problems.test_problems=2',
        '--config.problems.dev_problems=10',
        '--config.held_out.problems=10',
        '--config.held_out.samples=32',
        '--config.train.evaluate_every=50',
        '--config.train.checkpoint_every=50',
        '--config.alarm.stop=True',
        updates=200,
        config='--config=configs/rl_math.py:grpo,tiny',
      )
    ]
  )
  assert done.returncode == 0, done.stderr
  assert 'ALARM: the reward is hacked. Since update' in done.stdout
  found = results_of(tmp_path / 'hacked')['results']['rl']
  [alarm] = found['alarms']
  assert alarm['update'] == found['looks'][-1]['update'] < 200
  assert alarm['accuracy']['interval'][1] < 0 < alarm['score']['interval'][0]
  evidence = tmp_path / 'hacked' / f'hacked_update_{alarm["update"]}.jsonl'
  liked = [json.loads(line) for line in evidence.read_text().splitlines()]
  assert liked and not any(chain['outcome'] for chain in liked)
  page = (tmp_path / 'hacked' / 'report.html').read_text()
  assert 'hacked' in page
