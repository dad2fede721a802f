"""What an RL job refuses early: values, devices, models and problems."""

import dataclasses
import json

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.data.encoding import make_format
from prm_jax.data.problems import Problem
from prm_jax.inference import loading
from prm_jax.inference.loading import ModelDescription
from prm_jax.jobs import rl, rl_rating
from prm_jax.jobs.rl_meshes import check_meshes, make_meshes
from prm_jax.jobs.rl_problems import (
  Tasks,
  drop_too_long,
)
from prm_jax.jobs.rl_start import open_start
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir
from prm_jax.training.train_state import NO_LORA, TrainState
from tests.shared.configs import raw, settings
from tests.shared.tiny_sampling import MODEL, one_device, params_of

REFUSED = [
  # Values of one section.
  ('prime', {'prm.beta': 0.0}, 'prm.beta=0.0: expected a number above 0'),
  ('prime', {'prm.online.lr': 0.0}, 'prm.online.lr=0.0: expected a number abo'),
  ('prime', {'prm.dtype': 'float16'}, "prm.dtype='float16': expected one of"),
  ('grpo', {'prm.kind': 'best'}, "prm.kind='best': expected one of workdir, e"),
  ('grpo', {'reference.param_dtype': 'int8'}, "param_dtype='int8': expected o"),
  ('grpo', {'reward.form': 'sum'}, "reward.form='sum': expected one of raw"),
  ('grpo', {'reward.kl_weight': -1.0}, 'reward.kl_weight=-1.0: expected >= 0'),
  ('grpo', {'advantage.process': 'all'}, "process='all': expected one of auto"),
  ('grpo', {'loss.clip_low': 2.0}, r'loss.clip_low=2.0: .* number in \(0, 1\]'),
  ('grpo', {'loss.kl_estimator': 'k1'}, "loss.kl_estimator='k1': expected one"),
  ('grpo', {'optim.name': 'sgd'}, "optim.name='sgd': expected one of adamw"),
  ('grpo', {'train.updates': 0}, 'train.updates=0: expected >= 1'),
  ('grpo', {'train.staleness': -1}, 'train.staleness=-1: expected >= 0'),
  (
    'tiny',
    {'train.minibatches': 3},
    'minibatches=3: .* problems x samples = 1',
  ),
  ('tiny', {'train.checkpoint_every': 7}, 'every=7: .* of evaluate_every=2'),
  ('grpo', {'sampling.devices': -1}, 'sampling.devices=-1: expected >= 0'),
  ('grpo', {'model.scan_unroll': 0}, 'model.scan_unroll=0: expected >= 1, or'),
  ('grpo', {'held_out.path': 'a'}, "held_out.path='a': .* has held-out prob"),
  ('grpo', {'held_out.problems': 1}, 'held_out.problems=1: expected >= 2'),
  ('grpo', {'held_out.samples': 0}, 'held_out.samples=0: expected >= 1'),
  ('grpo', {'evaluation.ns': (4, 1)}, r'evaluation.ns=\(4, 1\): .* ascending'),
  ('grpo', {'evaluation.ns': (0, 4)}, r'evaluation.ns=\(0, 4\): expected >= 1'),
  *(
    (name, {'reward.outcome_weight': 0.0} | more, 'then nothing is rewarded')
    for name, more in (
      ('grpo', {'reward.form': 'outcome'}),
      ('grpo', {'reward.weight': 0.0}),
      ('grpo', {'reward.form': 'potential'}),
      ('ppo', {}),
    )
  ),
  ('grpo', {'reward.outcome_weight': -1.0}, 'outcome_weight=-1.0: expected >='),
  (
    'grpo',
    {'reward.form': 'clip', 'reward.threshold': 0.0},
    'reward.threshold=0.0: expected a number above 0',
  ),
  # Values of several sections.
  ('grpo', {'evaluation.ns': (1, 64)}, r'evaluation.ns=.* test.samples=16'),
  ('grpo', {'prm.kind': 'none'}, "reward.form='raw': needs step scores, and"),
  ('grpo', {'train.samples': 1}, "train.samples=1: advantage.estimator='grpo'"),
  (
    'grpo',
    {'reward.form': 'potential', 'advantage.process': 'chain'},
    "advantage.process='chain': with reward.form='potential'",
  ),
  (
    'grpo',
    {
      'reward.form': 'delta',
      'reward.normalise': 'steps',
    },
    "reward.normalise='steps': with reward.form='delta' .* expected 'none'",
  ),
  (
    'ppo',
    {'reward.chains': 'wrong'},
    "reward.chains='wrong': with reward.form='potential' .* expected 'all'",
  ),
  (
    'grpo',
    {'reward.chains': 'wrong', 'reward.normalise': 'steps'},
    "reward.chains='wrong': with reward.normalise='steps' .* expected 'all'",
  ),
  (
    'ppo',
    {'reward.chains': 'wrong', 'reward.form': 'raw'},
    "reward.chains='wrong': with advantage.estimator='gae' a wrong chain",
  ),
  *(
    (
      'grpo',
      {'advantage.process': 'step', f'reward.{name}': value},
      f"advantage.process='step': with reward.{name}='{value}'",
    )
    for name, value in (
      *(('form', form) for form in ('delta', 'total', 'min_form')),
      ('normalise', 'steps'),
    )
  ),
  ('grpo', {'reward.weight': -0.5}, 'reward.weight=-0.5: expected >= 0'),
  (
    'grpo',
    {'advantage.process': 'to_go'},
    "advantage.baseline='position': with process='to_go' it would tax",
  ),
  (
    'exact',
    {'prm.also': ('/a',)},
    r"prm.also=.* expected \(\) with kind='exact'",
  ),
  (
    'grpo',
    {'reward.chains': 'wrong', 'advantage.process': 'chain'},
    "advantage.process='chain': with reward.chains='wrong'",
  ),
  (
    'grpo',
    {'advantage.keep': 0.1},
    'advantage.keep=0.1: leaves 1 of train.sam',
  ),
  (
    'grpo',
    {'advantage.keep': 0.95},
    'advantage.keep=0.95: drops none of train.samples=8 chains',
  ),
  ('outcome', {'advantage.keep': 0.5}, 'advantage.keep=0.5: needs step scores'),
  ('grpo', {'advantage.keep': 0.0}, r'advantage.keep=0.0: expected .* \(0, 1'),
  (
    'ppo',
    {'advantage.discount': 0.9},
    "advantage.discount=0.9: with reward.form='potential' .* expected 1",
  ),
  # Values that nothing reads.
  *(
    (
      variants,
      {f'advantage.{name}': value},
      f"advantage.{name}=.*: advantage.estimator='{estimator}' does not read ",
    )
    for variants, estimator, name, value in (
      ('ppo', 'gae', 'process', 'to_go'),
      ('ppo', 'gae', 'process', 'chain'),
      ('ppo', 'gae', 'baseline', 'group'),
      ('grpo', 'grpo', 'discount', 0.9),
      ('rloo', 'rloo', 'trace', 1.0),
    )
  ),
  ('outcome', {'alarm.stop': True}, "alarm.stop=True: prm.kind='none' raises"),
  ('grpo', {'test.path': 'a'}, "test.path='a': .* has .* test problems of its"),
  (
    'grpo',
    {'train.kl_stop': 0.1},
    'train.kl_stop=0.1: with one step on each batch there is none to leave',
  ),
  ('prime', {'prm.online.on': False}, 'prm.online.on=False: a PRM that stays'),
  ('prime', {'reward.form': 'delta'}, "reward.form='delta': takes probabilit"),
  ('prime', {'reward.centre': 0.5}, 'reward.centre=0.5: .* expected 0.0'),
]


@pytest.mark.parametrize(('variants', 'values', 'message'), REFUSED)
def test_bad_values_are_refused(variants, values, message):
  with pytest.raises(UserError, match=message):
    settings('rl_math', variants, **values)


@pytest.mark.parametrize(
  ('variants', 'values', 'names'),
  [
    (
      'tiny',
      {
        'advantage.eps': 0.0,
        'prm.online.lr': -1.0,
        'sampling.slots': 0,
        'train.minibatches': 3,
      },
      ['advantage.eps', 'prm.online.lr', 'sampling.slots', 'train.minibatches'],
    ),
    (
      'outcome',
      {
        'reward.form': 'delta',
        'advantage.process': 'chain',
        'train.samples': 1,
        'test.samples': 8,
      },
      [
        'advantage.process',
        'evaluation.ns',
        'reward.form',
        'train.samples',
      ],
    ),
  ],
)
def test_all_faults_are_reported_at_once(variants, values, names):
  with pytest.raises(UserError) as error:
    settings('rl_math', variants, **values)
  lines = str(error.value).split('\n')
  found = sorted(line.partition('=')[0] for line in lines)
  assert found == [f'config.{name}' for name in names]


@pytest.mark.parametrize(
  ('variants', 'values'),
  [
    ('grpo', {}),
    ('grpo', {'advantage.process': 'to_go', 'advantage.baseline': 'group'}),
    ('ppo', {'train.samples': 1}),
  ],
)
def test_telescoping_rewards_suit_returns_and_gae(variants, values):
  values = {'reward.form': 'delta'} | values
  assert settings('rl_math', variants, **values).reward.form == 'delta'


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'sampling.devices': 4}, 'sampling.devices=4: leaves none of 4 devices'),
    (
      {'sampling.devices': 3, 'mesh.model': 2},
      'model=2 does not fit 1 devices',
    ),
    (
      {'sampling.devices': 1, 'mesh.model': 3},
      'sampling.devices=1: expected a multiple of mesh.model=3',
    ),
    ({'train.staleness': 1}, 'which 4 devices cannot share: give sampling'),
    ({'mesh.model': 4, 'mesh.fsdp': 1}, 'n_heads=2 does not divide over mesh'),
    (
      {'sampling.devices': 3, 'sampling.slots': 66},
      'sampling.devices=3: the first policy reads 64 chains a call, which do '
      'not divide over replica x fsdp = 3 of them; expected mesh.model=1 times '
      'a divisor of 64',
    ),
    ({'sampling.slots': 6}, 'sampling.slots=6 does not divide over replica'),
    ({'train.microbatches': 5}, 'a minibatch of 64 chains does not divide'),
  ],
)
def test_devices_that_do_not_fit_are_refused(values, message):
  """The first device of a process with four stands for each of them."""
  devices = np.array(jax.devices()[:1] * 4)
  chosen = settings('rl_math', 'grpo', **values)
  with pytest.raises(UserError, match=message):
    meshes = make_meshes(chosen, devices)
    check_meshes(chosen, dataclasses.replace(MODEL, n_heads=2), meshes)


def test_devices_that_share_a_model_count_as_one():
  """6 devices in pairs read 3 chains at a time, and 4 devices read 2."""
  devices = np.array(jax.devices()[:1] * 8)

  def check(count):
    values = {'mesh.model': 2, 'sampling.slots': 66, 'sampling.devices': count}
    chosen = settings('rl_math', 'grpo', **values)
    meshes = make_meshes(chosen, devices)
    check_meshes(chosen, dataclasses.replace(MODEL, n_heads=2), meshes)

  check(4)  # which is 2 times a divisor of 64
  with pytest.raises(UserError, match=r'= 3 of them; .* mesh\.model=2 times a'):
    check(6)


def test_sampling_splits_a_model_as_training_does():
  devices = np.array(jax.devices()[:1] * 4)
  values = {'mesh.fsdp': 1, 'mesh.model': -1, 'sampling.devices': 2}
  for mesh in make_meshes(settings('rl_math', 'grpo', **values), devices):
    assert mesh.shape == {'replica': 1, 'fsdp': 1, 'model': 2}


def problems(*texts):
  return [Problem(text, 'some', text, '1') for text in texts]


def test_problems_without_room_are_dropped():
  fmt = make_format('bytes', 12)
  tasks = Tasks(
    problems('short', 'much too long for it'),
    problems('brief', 'tiny', 'that is too long'),
    problems('one that is too long'),
  )
  lines = []
  kept = drop_too_long(tasks, fmt, 1, lines.append)
  assert [[p.text for p in part] for part in kept] == [
    ['short'],
    ['brief', 'tiny'],
    ['one that is too long'],
  ]
  assert lines == [
    f'rl: 1 of {count} problems ({name}) are dropped: no room for a chain in '
    "the policy's window of 12 tokens"
    for name, count in (('train', 2), ('held out', 3))
  ]
  # A batch must not have a problem twice.
  with pytest.raises(UserError, match=r'training 1 fit, where train\.pro'):
    drop_too_long(tasks, fmt, 2, lines.append)
  with pytest.raises(UserError, match='window of 12 tokens is too short'):
    drop_too_long(tasks._replace(train=tasks.test), fmt, 1, lines.append)


@pytest.mark.parametrize(
  ('variants', 'values', 'read'),
  [
    ('prime', {'loss.kl_weight': 0.0}, True),
    ('grpo', {'prm.path': 'x'}, True),
    ('outcome', {'loss.kl_weight': 0.0, 'reward.kl_weight': 0.1}, True),
    ('outcome', {'loss.kl_weight': 0.0}, False),
  ],
)
def test_which_variants_read_the_first_policy(variants, values, read):
  chosen = settings('rl_math', variants, **values)
  assert chosen.reads_reference == read
  assert chosen.has_implicit_prm == (variants == 'prime')


def write_policy(folder, tokenizer, param_dtype='float32'):
  """Writes the workdir of an untrained policy."""
  folder.mkdir()
  fmt = make_format(tokenizer, 48)
  model = dataclasses.replace(
    MODEL, vocab_size=fmt.tokenizer.vocab_size, param_dtype=param_dtype
  )
  described = ModelDescription(model, None, NO_LORA, fmt)
  loading.write_description(folder, described)
  for name in ('config.json', 'data.json'):
    (folder / name).write_text('{}')
  params = {'backbone': params_of(model)}
  zero = jnp.int32(0)
  state = TrainState(zero, params, (), jax.random.key(0), zero, zero)
  checkpoints = Checkpoints(folder / 'checkpoints', 1, '')
  position = iter(grain.MapDataset.range(1).to_iter_dataset())
  checkpoints.save(1, state, position, {})
  checkpoints.close()
  return str(folder)


@pytest.fixture(scope='module')
def ours(tmp_path_factory):
  return write_policy(tmp_path_factory.mktemp('policy') / 'ours', 'arithmetic')


def test_an_implicit_prm_starts_as_a_policy(ours, tmp_path):
  """The job's own policy, or another with the same tokens; in its own dtype."""
  same = write_policy(tmp_path / 'same', 'arithmetic')
  bytewise = write_policy(tmp_path / 'bytewise', 'bytes')

  def opened(path):
    chosen = settings(
      'rl_math', 'prime', **{'prm.path': path, 'prm.dtype': 'bfloat16'}
    )
    start = open_start(ours, chosen)
    return start, rl_rating.open_prm(
      chosen, start, one_device(), Workdir(tmp_path, {})
    )

  for path in ('', same):
    start, first = opened(path)
    assert str(first.folder) == (path or ours)
    assert first.described.model.param_dtype == 'bfloat16'
    assert start.described.model.param_dtype == 'float32'
  with pytest.raises(UserError, match=r'prm.path=.*bytewise.: has another to'):
    opened(bytewise)


@pytest.mark.parametrize(
  ('variant', 'asked'), [('outcome', False), ('prime', True)]
)
def test_only_a_prm_that_is_asked_must_not_know_the_test(
  ours, tmp_path, variant, asked
):
  prm = write_policy(tmp_path / 'prm', 'arithmetic')
  # With fewer test problems the next ones are trained on.
  data = raw('rl_math', 'tiny')['problems'] | {'test_problems': 4}
  config = json.dumps({'seed': 0, 'data': data})
  (tmp_path / 'prm' / 'config.json').write_text(config)
  values = {'policy.workdir': ours, 'prm.path': prm}
  chosen = settings('rl_math', f'{variant},tiny', **values)
  workdir = Workdir.open(tmp_path / 'rl', {}, {})
  if not asked:
    assert rl.open_job(chosen, workdir, print).prm is None
    return
  with pytest.raises(UserError, match='prm was trained on 4 of the 12 problem'):
    rl.open_job(chosen, workdir, print)


@pytest.mark.parametrize('rank', [0, 4])
def test_a_policy_that_learns_is_float32_however_it_is_stored(tmp_path, rank):
  """Small updates are lost in bfloat16, where adapters leave it alone."""
  stored = write_policy(tmp_path / 'stored', 'arithmetic', 'bfloat16')
  start = open_start(stored, settings('rl_math', **{'lora.rank': rank}))
  found = {x.dtype for x in jax.tree.leaves(start.load_to_train(one_device()))}
  assert found == {jnp.dtype('bfloat16' if rank else 'float32')}


def test_the_first_policy_in_bfloat16_is_rounded_once(ours):
  start = open_start(ours, settings('rl_math'))
  exact, rounded = (start.load(one_device(), x) for x in ('', 'bfloat16'))
  for x, y in zip(*map(jax.tree.leaves, (exact, rounded)), strict=True):
    assert (x.dtype, y.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_array_equal(x.astype(jnp.bfloat16), y)
