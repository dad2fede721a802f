"""From an RL job's config to its parts: what can be refused early is."""

import dataclasses
import importlib.util
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
from prm_jax.jobs import rl_rating
from prm_jax.jobs.rl_meshes import check_meshes, make_meshes
from prm_jax.jobs.rl_problems import Tasks, check_unseen, read_tasks, that_fit
from prm_jax.jobs.settings.rl import open_start, settings_of
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.training.train_state import NO_LORA, TrainState
from tests.shared.command_line import ROOT
from tests.shared.tiny_sampling import MODEL, one_device, params_of


def config_of(variants='prime', **values):
  """configs/rl_math.py with values by their dotted names."""
  spec = importlib.util.spec_from_file_location(
    'rl_math', ROOT / 'configs' / 'rl_math.py'
  )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = module.get_config(variants)
  config.update_from_flattened_dict({'policy.workdir': 'there'} | values)
  return config.to_dict()


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'prm.beta': 0.0}, 'prm.beta=0.0: expected above 0'),
    ({'prm.online.lr': 0.0}, 'prm.online.lr=0.0: expected above 0'),
    ({'prm.online.on': False}, 'prm.online.on=False and no prm.path'),
    ({'prm.dtype': 'float16'}, "prm.dtype='float16': expected one of"),
    ({'reward.form': 'delta'}, "reward.form='delta' is made of probabilities"),
    ({'reward.centre': 0.5}, 'reward.centre=0.5 with prm.kind='),
    (
      {'reference.param_dtype': 'int8'},
      "reference.param_dtype='int8': expected one of",
    ),
  ],
)
def test_bad_values(values, message):
  with pytest.raises(UserError, match=message):
    settings_of(config_of(**values))


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (
      {'reward.form': 'delta'},
      "reward.form='delta' with advantage.process='step': what such a reward",
    ),
    (
      {'reward.form': 'potential', 'advantage.process': 'chain'},
      "reward.form='potential' with advantage.process='chain'",
    ),
    (
      {
        'reward.form': 'delta',
        'advantage.process': 'to_go',
        'reward.normalise': 'steps',
      },
      "reward.form='delta' with reward.normalise='steps'",
    ),
    (
      {
        'reward.form': 'potential',
        'advantage.estimator': 'gae',
        'advantage.discount': 0.9,
      },
      "reward.form='potential' with advantage.discount=0.9",
    ),
    ({'train.samples': 1}, "train.samples=1 with advantage.estimator='grpo'"),
    ({'loss.kl_estimator': 'k1'}, "loss.kl_estimator='k1': expected one of k2"),
    ({'evaluation.ns': (4, 1)}, r'evaluation.ns=\(4, 1\): expected ascending'),
    ({'evaluation.ns': (0, 4)}, r'evaluation.ns=\(0, 4\): expected ascending'),
  ],
)
def test_what_does_not_go_together(values, message):
  with pytest.raises(UserError, match=message):
    settings_of(config_of('grpo', **values))


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'prm.kind': 'best'}, "prm.kind='best': expected one of workdir, exact"),
    ({'prm.kind': 'none'}, "reward.form='raw' wants step scores"),
    ({'prm.dtype': 'int8'}, "prm.dtype='int8': expected one of"),
    ({'reward.form': 'sum'}, "reward.form='sum': expected one of raw"),
    (
      {'advantage.process': 'all'},
      "advantage.process='all': expected one of chain",
    ),
    ({'loss.clip_low': 2.0}, 'loss.clip_low=2.0: expected above 0'),
    ({'train.updates': 0}, 'train.updates=0: expected >= 1'),
    (
      {'train.minibatches': 3},
      '16 chains do not divide into train.minibatches=3',
    ),
    (
      {'train.checkpoint_every': 7},
      'is no multiple of train.evaluate_every=2',
    ),
    (
      {'evaluation.ns': (1, 64)},
      r'evaluation.ns=\(1, 64\): expected ascending',
    ),
    (
      {'held_out.samples': 0},
      'held_out: expected problems >= 2 and samples >= 1',
    ),
    ({'optim.name': 'sgd'}, "optim.name='sgd': expected one of adamw"),
  ],
)
def test_values_that_are_no_choice(values, message):
  with pytest.raises(UserError, match=message):
    settings_of(config_of('grpo,exact,tiny', **values))


def test_what_telescopes_is_for_to_go_and_gae():
  for variants, values in (
    ('grpo', {'advantage.process': 'to_go'}),
    ('ppo', {'train.samples': 1}),
  ):
    settings_of(config_of(variants, **{'reward.form': 'delta'} | values))


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'sampling.devices': -1}, 'sampling.devices=-1: expected >= 0'),
    ({'sampling.devices': 4}, 'sampling.devices=4 of 4 devices leaves none'),
    (
      {'sampling.devices': 3, 'mesh.model': 2},
      'model=2 does not fit 1 devices',
    ),
    ({'train.staleness': 1}, 'which 4 devices cannot share: give sampling'),
    ({'train.staleness': -1}, 'train.staleness=-1: expected >= 0'),
    ({'mesh.model': 4, 'mesh.fsdp': 1}, 'n_heads=2 does not divide over mesh'),
    ({'sampling.slots': 6}, 'sampling.slots=6 does not divide over replica'),
  ],
)
def test_devices_that_do_not_go_together(values, message):
  """The first of a process that has four stands for each of them."""
  devices = np.array(jax.devices()[:1] * 4)
  with pytest.raises(UserError, match=message):
    config = config_of('grpo', **values)
    settings = settings_of(config)
    meshes = make_meshes(config, devices)
    two_heads = dataclasses.replace(MODEL, n_heads=2)
    check_meshes(settings, two_heads, meshes)


def problems(*texts):
  return [Problem(text, 'some', text, '1') for text in texts]


def test_problems_without_room_are_left_out():
  fmt = make_format('bytes', 12)
  tasks = Tasks(
    problems('short', 'much too long for it'),
    problems('brief', 'tiny', 'that is too long'),
    problems('one that is too long'),
  )
  said = []
  fit = that_fit(tasks, fmt, said.append)
  assert [[p.text for p in part] for part in fit] == [
    ['short'],
    ['brief', 'tiny'],
    ['one that is too long'],
  ]
  assert said == [
    f'rl: 1 of {count} problems ({name}) left out: no room for a chain in the '
    "policy's window of 12 tokens"
    for name, count in (('train', 2), ('held out', 3))
  ]
  with pytest.raises(UserError, match='window of 12 tokens is too short'):
    that_fit(tasks._replace(train=tasks.test), fmt, said.append)


def test_models_that_know_the_answers_are_refused(tmp_path):
  """Splits are one draw: with fewer test problems they are cut elsewhere."""
  tasks = read_tasks(config_of('grpo,tiny'))
  data = config_of('grpo,tiny')['problems']
  for test_problems, known in ((8, False), (4, True)):
    config = {'seed': 0, 'data': data | {'test_problems': test_problems}}
    (tmp_path / 'config.json').write_text(json.dumps(config))
    if known:
      with pytest.raises(UserError, match='was trained on 4 of the 12 problem'):
        check_unseen(tasks, tmp_path)
    else:
      check_unseen(tasks, tmp_path)
  # Of those who publish nobody knows.
  (tmp_path / 'config.json').write_text('{"model_type": "qwen2"}')
  for published in (tmp_path, 'hf://owner/name', ''):
    check_unseen(tasks, published)


@pytest.mark.parametrize(
  ('variants', 'values', 'read'),
  [
    ('prime', {'loss.kl_weight': 0.0}, True),
    ('grpo', {'prm.path': 'x'}, True),
    ('outcome', {'loss.kl_weight': 0.0, 'reward.kl_weight': 0.1}, True),
    ('outcome', {'loss.kl_weight': 0.0}, False),
  ],
)
def test_who_reads_the_first_policy(variants, values, read):
  settings = settings_of(config_of(variants, **values))
  assert settings.reads_reference == read
  assert (settings.implicit is not None) == (variants == 'prime')


def write_policy(folder, tokenizer):
  """The workdir of a policy that nobody trained."""
  folder.mkdir()
  fmt = make_format(tokenizer, 48)
  model = dataclasses.replace(MODEL, vocab_size=fmt.tokenizer.vocab_size)
  described = ModelDescription(model, None, NO_LORA, fmt)
  loading.write_description(folder, described)
  for name in ('config.json', 'data.json'):
    (folder / name).write_text('{}')
  params = {'backbone': params_of(model)}
  state = TrainState(0, params, (), jax.random.key(0), 0, 0)
  checkpoints = Checkpoints(folder / 'checkpoints', 1, '')
  position = iter(grain.MapDataset.range(1).to_iter_dataset())
  checkpoints.save(1, state, position, {})
  checkpoints.close()
  return str(folder)


@pytest.fixture(scope='module')
def ours(tmp_path_factory):
  return write_policy(tmp_path_factory.mktemp('policy') / 'ours', 'arithmetic')


def test_an_implicit_prm_starts_as_a_policy(ours, tmp_path):
  """The job's own, or another that reads the same tokens; kept as wanted."""
  same = write_policy(tmp_path / 'same', 'arithmetic')
  bytewise = write_policy(tmp_path / 'bytewise', 'bytes')

  def opened(path):
    config = config_of(
      **{'policy.workdir': ours, 'prm.path': path, 'prm.dtype': 'bfloat16'}
    )
    settings = settings_of(config)
    start = open_start(ours, config, settings)
    return start, rl_rating.open_prm(config, settings, start, one_device())

  for path in ('', same):
    start, first = opened(path)
    assert str(first.folder) == (path or ours)
    assert first.described.model.param_dtype == 'bfloat16'
    assert start.described.model.param_dtype == 'float32'
  with pytest.raises(UserError, match=r'prm.path=.*bytewise has another token'):
    opened(bytewise)


def test_the_first_policy_in_bfloat16(ours):
  """What is read is rounded once."""
  config = config_of(**{'policy.workdir': ours})
  start = open_start(ours, config, settings_of(config))
  exact, rounded = (start.load(one_device(), x) for x in ('', 'bfloat16'))
  for x, y in zip(*map(jax.tree.leaves, (exact, rounded)), strict=True):
    assert (x.dtype, y.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_array_equal(x.astype(jnp.bfloat16), y)
