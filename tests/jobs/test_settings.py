"""From a training job's config to its parts: what can be refused early is."""

import pytest
from ml_collections import ConfigDict

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.jobs import evaluate, policy, prm
from prm_jax.jobs.settings import TASKS, default_config, read_settings
from prm_jax.jobs.training import check_counts, open_model
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir
from prm_jax.training.objective import LossConfig
from tests.shared import configs
from tests.shared.configs import settings

COUNTS = {
  'loss.name': 'beta_binomial',
  'head.kind': 'two_class',
  'orm_baseline': False,
}


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (
      {'targets.hard_above': 0.0},
      r'config\.targets\.hard_above=0\.0: .* unset it',
    ),
    (
      {'targets.after_first_error': 'bad'},
      r"config\.targets\.after_first_error='bad': .* 'keep' or 'mask'",
    ),
    (
      {'targets.supervision': 'outcome'},
      r"config\.targets\.supervision='outcome': .* expected 'process'",
    ),
    ({'orm_baseline': True}, r'config\.orm_baseline=True: .* expected False'),
  ],
)
def test_counts_that_nobody_counted_are_refused(values, message):
  """8 of 8 out of 4 of 8: hardened labels keep their number of trials."""
  with pytest.raises(UserError, match=message):
    settings('prm_math', 'tiny', **COUNTS | values)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (
      {'loss.name': 'ranking'},
      r"config\.loss\.name='ranking': compares the st",
    ),
    (
      {'targets.supervision': 'outcome', 'loss.name': 'ranking'},
      r"config\.loss\.name='ranking': compares the steps",
    ),
    (
      {'targets.supervision': 'outcome'},
      r'config\.orm_baseline=True: with targ',
    ),
  ],
)
def test_an_outcome_model_that_says_nothing_is_refused(values, message):
  with pytest.raises(UserError, match=message):
    settings('prm_math', 'tiny', **values | {'orm_baseline': True})


def test_every_token_has_a_row():
  few = settings('prm_math', 'tiny', **{'model.vocab_size': 50})
  with pytest.raises(
    UserError, match=r'model\.vocab_size=50: the tokenizer has'
  ):
    open_model(few)
  more = settings('prm_math', 'tiny', **{'model.vocab_size': 200})
  assert open_model(more).described.model.vocab_size == 200


@pytest.mark.parametrize('after', ['mask', 'keep'])
def test_counts_as_they_were_counted_are_taken(after):
  values = COUNTS | {'targets.after_first_error': after}
  assert settings('prm_math', 'tiny', **values).loss.name == 'beta_binomial'


def test_hard_labels_are_for_losses_without_counts():
  hard = settings('prm_math', 'tiny', **{'targets.hard_above': 0.0})
  assert hard.targets.hard_above == 0


def test_a_loss_of_counts_wants_some():
  """Without counts no step would weigh anything, and nothing be learned."""
  right, half = StepLabel(1.0), StepLabel(0.5, 'rollout', 4, 8)
  plain = Chain('p', ('a',), labels=(right,))
  counted = Chain('p', ('a', 'b'), labels=(right, half))
  loss = LossConfig('beta_binomial')
  check_counts(loss, [plain, counted])
  with pytest.raises(UserError, match=r'none of the 1 chains has .* counts'):
    check_counts(loss, [plain])
  check_counts(LossConfig('bce'), [plain])


def test_a_policy_has_no_head_to_train_first():
  with pytest.raises(UserError, match='head_only_steps=2: a policy has no'):
    settings('policy_math', 'tiny', **{'train.head_only_steps': 2})


def test_a_policy_without_test_problems_is_refused():
  """It would be trained for hours and then have nothing to be judged by."""
  with pytest.raises(UserError, match=r'data\.test_problems=0: the policy is'):
    settings('policy_math', 'tiny', **{'data.test_problems': 0})


@pytest.mark.parametrize('task', TASKS)
def test_the_defaults_of_a_task_are_settings(task):
  assert isinstance(TASKS[task](), TASKS[task])
  assert default_config(task).task == task


def test_a_config_of_no_task_is_refused():
  with pytest.raises(UserError, match=r"config\.task='walk': expected one of"):
    read_settings({'task': 'walk'})


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (
      {'data.row_length': 8},
      r'config\.data\.row_length=8: is shorter than max_length=46; raise it',
    ),
    ({'data.first_labels': 3}, r'config\.data\.first_labels=3: set labels'),
    (
      {'data.shortest': 6},
      r'data\.shortest=6: is above arithmetic\.operations=5',
    ),
    (
      {'data.train': (('a.jsonl', 'trl'),)},
      r"data\.kind='arithmetic': train is unused; leave it out or set 'files'",
    ),
    (
      {'data.kind': 'words', 'data.decontaminate': ('a.jsonl',)},
      r"data\.kind='words': decontaminate is unused; leave it out or set 'f",
    ),
    (
      {'data.kind': 'logic', 'data.shortest': 2},
      r"data\.kind='logic': shortest is unused; leave it out or set 'a",
    ),
    ({'train.head_only_steps': 6}, r'train\.head_only_steps=6: expected less'),
    (
      {'evaluation.ns': (4, 2)},
      r'config\.evaluation\.ns=\(4, 2\): .*ascending',
    ),
    (
      {'evaluation.aggregate': 'max'},
      r"config\.evaluation\.aggregate='max': expected one of aggregates",
    ),
    (
      {'evaluation.best_of_n': 'gsm8k'},
      r"config\.evaluation\.best_of_n='gsm8k': expected one of arithmetic, ''",
    ),
    (
      {'train.best_metric': 'eval/brier'},
      r"config\.train\.best_metric='eval/brier': expected one of eval/auc, ''",
    ),
    (
      {'targets.supervision': 'completion'},
      r"config\.targets\.supervision='completion': is for policies",
    ),
    (
      {'lora.rank': 4},
      r'config\.lora\.rank=4: adapters need a trained backbone',
    ),
    (
      {'base': 'smollm2'},
      r"config\.model\.d_ff=64: base='smollm2' brings its own",
    ),
    (
      {'profile.steps': 3, 'profile.first_step': 5},
      r'config\.profile\.first_step=5: .* train\.steps=6',
    ),
  ],
)
def test_values_that_do_not_go_together(values, message):
  with pytest.raises(UserError, match=message):
    settings('prm_math', 'tiny', **values)


def test_every_fault_of_a_config_is_reported_at_once():
  with pytest.raises(UserError) as error:
    settings(
      'prm_math',
      'tiny',
      **{
        'seed': -1,
        'train.steps': 0,
        'optim.name': 'sgd',
        'data.arithmetic.slip': 2.0,
        'mesh.fsdp': -1,
      },
    )
  lines = str(error.value).split('\n')
  assert sorted(line.partition('=')[0] for line in lines) == [
    'config.data.arithmetic.slip',
    'config.optim.name',
    'config.seed',
    'config.train.steps',
  ]


# The keys of each config that have come since the first version.
NEW = {
  'prm_math': {
    *('root', 'train', 'evaluations', 'decontaminate', 'dev_share'),
    *('worked_answers', 'words_problems', 'on_error', 'words', 'end'),
    'shortest',
  },
  'policy_math': {
    *('labels', 'first_labels', 'root', 'train', 'evaluations'),
    *('decontaminate', 'dev_share', 'worked_answers', 'words_problems'),
    *('on_error', 'words', 'shortest'),
  },
}


@pytest.mark.parametrize('file', NEW)
def test_a_workdir_of_the_first_version_can_be_resumed(tmp_path, file):
  """Its config.json lacks the keys that have come since."""
  now = configs.raw(file, 'tiny')
  data = {k: v for k, v in now['data'].items() if k not in NEW[file]}
  before = now | {'data': data, 'aot': {'topology': '', 'model': {}}}
  Workdir.open(tmp_path, before, {}).claim('abc')
  with pytest.raises(UserError, match='another config'):
    Workdir.open(tmp_path, now, {}).claim('abc')
  defaults = default_config(now['task']).to_dict()
  Workdir.open(tmp_path, now, defaults).claim('abc')


def test_a_sampling_job_of_an_earlier_version_can_be_resumed(tmp_path):
  """Only searches could name their first problem, and the number of them."""
  now = configs.raw('sample_math')
  problems = dict(now['problems'])
  del problems['first'], problems['count']
  Workdir.open(tmp_path, now | {'problems': problems}, {}).claim('abc')
  defaults = default_config('sample').to_dict()
  Workdir.open(tmp_path, now, defaults).claim('abc')
  fewer = now | {'problems': now['problems'] | {'count': 3}}
  with pytest.raises(UserError, match=r'differs in problems\.count'):
    Workdir.open(tmp_path, fewer, defaults)


@pytest.mark.parametrize('task', [['prm'], {}, None, 3])
def test_a_task_of_another_type_is_refused(task):
  with pytest.raises(UserError, match=r'config\.task=.*: expected one of prm'):
    read_settings({'task': task})


def test_a_fault_is_one_line_whatever_the_key_and_the_value():
  config = {'task': 'prm', 'a\nb': 1, 'seed': ConfigDict({'c': 2})}
  with pytest.raises(UserError) as error:
    read_settings(config)
  unknown, wrong = str(error.value).split('\n')
  assert unknown.startswith('config.a b=1: unknown; delete it')
  assert wrong == 'config.seed=c: 2: expected a whole number'


@pytest.mark.parametrize(
  ('run', 'config', 'values'),
  [
    (prm.run, 'prm_math', {}),
    (evaluate.run, 'evaluate_math', {'prm.path': '/somewhere'}),
  ],
)
def test_votes_need_what_compares_answers_before_any_work(
  tmp_path, monkeypatch, run, config, values
):
  voting = {'data.root': str(tmp_path), 'evaluation.best_of_n': 'gsm8k'}
  job = settings(config, 'human', **voting, **values)
  # Where it is installed, the job looks for its files, and finds none.
  with pytest.raises(UserError, match=str(tmp_path)):
    run(job, Workdir(tmp_path, {}), print)
  monkeypatch.setattr(policy, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r"install 'prm_jax\[verify\]'"):
    run(job, Workdir(tmp_path, {}), print)
