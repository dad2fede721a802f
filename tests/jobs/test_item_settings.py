"""Configs of sampling, labelling and search jobs: every fault is named.

Nothing is opened or read here: all of this is seen in the settings.
"""

import pytest

from prm_jax.jobs.settings import read_settings
from prm_jax.runtime.errors import UserError
from tests.shared import configs


def read(name, **values):
  """Reads `label:rollouts` with values by their dotted names."""
  job, _, variant = name.partition(':')
  return configs.settings(f'{job}_math', f'{variant},tiny', **values)


# Config, a value by its dotted name -> the line that says what is wrong.
FAULTS = [
  ('label', 'source', 'foo', 'one of verifier, rollouts, omega, judge, corr'),
  ('label', 'select', 'foo', "one of '', active, consensus"),
  (
    'label',
    'chains.kind',
    'foo',
    'one of arithmetic, logic, code, files, workdir',
  ),
  ('label', 'chains.on_error', 'foo', 'one of stop, quarantine'),
  ('label', 'concurrent', 0, '>= 1'),
  ('label', 'price.tokens', -1.0, '>= 0'),
  ('label', 'verifier.unchecked', 'foo', 'one of unknown, right'),
  ('label', 'verifier.limits.files', 0, 'a number in \\(0, '),
  ('label', 'verifier.limits.cpu_seconds', 2**70, 'a number in \\(0, 86400'),
  ('label', 'verifier.limits.wall_seconds', float('inf'), 'a number in \\(0, '),
  ('label', 'policy.endpoint.extra', 'top_k=20', 'a JSON object, such as'),
  ('label', 'policy.endpoint.extra', '[' * 10**5, 'a JSON object, such as'),
  ('label', 'policy.endpoint.extra', '[1]', 'a JSON object, such as'),
  ('label:rollouts', 'rollouts.samples', 0, '>= 1'),
  ('label:rollouts', 'policy.kind', 'foo', 'one of solver, workdir, endpoint'),
  ('label:rollouts', 'policy.kind', 'recorded', '.* policy writes new chains'),
  ('label:omega', 'omega.threshold', 1.0, 'a number in'),
  ('label:judge', 'judge.samples', 0, '>= 1'),
  ('label:judge', 'policy.kind', 'solver', 'one of endpoint: .* judges'),
  (
    'label:corruption',
    'corruption.kinds',
    ('foo',),
    'one of wrong_operand, wr',
  ),
  ('label:corruption', 'corruption.kinds', (), 'one or more of wrong_op'),
  ('sample', 'samples', 0, '>= 1'),
  (
    'sample',
    'problems.kind',
    'foo',
    'one of arithmetic, logic, code, words, file',
  ),
  ('sample', 'problems.split', 'foo', 'one of train, dev, test'),
  ('sample', 'policy.sampling.top_p', 0.0, 'a number in'),
  ('search', 'method', 'baem', 'one of best_of_n, majority'),
  ('search:best_of_n', 'best_of_n.samples', 0, '>= 1'),
  ('search:beam', 'search.aggregate', 'foo', 'one of min, prod'),
  ('search:beam', 'search.max_steps', 0, '>= 1'),
  ('search:beam', 'budget.samples', 0, '>= 1'),
  ('search:beam', 'budget.tokens', -1, 'a number above 0'),
  ('search:beam', 'budget.seconds', float('nan'), 'a number above 0'),
  ('search:beam', 'problems.first', -1, '>= 0'),
  ('search:beam', 'trees', -1, '>= 0'),
  (
    'search:beam',
    'prm.kind',
    'foo',
    'one of workdir, endpoint, generative, exact, none',
  ),
  ('search:beam', 'prm.style', 'foo', "one of '', qwen_prm"),
  ('search:beam', 'prm.exact', 'foo', 'one of value, steps'),
  ('search:beam', 'prm.rows', 0, '>= 1'),
]


@pytest.mark.parametrize(('job', 'name', 'value', 'expected'), FAULTS)
def test_a_wrong_value_is_named(job, name, value, expected):
  with pytest.raises(UserError) as error:
    read(job, **{name: value})
  line = str(error.value)
  assert line.startswith(f'config.{name}={value!r}: expected ')
  with pytest.raises(UserError, match=f'expected {expected}'):
    raise error.value
  assert '\n' not in line


SERVED = {
  'policy.kind': 'endpoint',
  'policy.endpoint.base_url': 'http://localhost:1',
  'policy.endpoint.model': 'm',
}
GREEDY = {
  'policy.kind': 'workdir',
  'policy.workdir': '/policy',
  'policy.sampling.temperature': 0.0,
}
# Values that are wrong together, or are missing.
TOGETHER = [
  (
    'label:rollouts',
    {'policy.kind': 'workdir'},
    "policy.workdir='': .*policy_",
  ),
  (
    'label:rollouts',
    {'policy.kind': 'endpoint'},
    r"config.policy.endpoint.base_url='': .*\n.*endpoint.model='': expected",
  ),
  (
    'label:active',
    {'chains.kind': 'arithmetic'},
    "prm.path='': .*of a trained PRM",
  ),
  (
    'label:consensus',
    {'consensus.first': 'a', 'consensus.second': 'a'},
    "consensus.second='a': expected another source",
  ),
  ('search:beam', {'beam.width': 3}, 'beam.samples=4: .* multiple of width=3'),
  ('search:beam', {'prm.kind': 'none'}, "prm.kind='none': .*majority"),
  ('search:beam', {'prm.kind': 'workdir'}, "prm.path='': .*of a trained PRM"),
  (
    'search:beam',
    {'policy.kind': 'workdir'},
    "policy.workdir='': .*trained po",
  ),
  ('search:beam', {'policy.kind': 'recorded'}, "policy.workdir='': .*sampling"),
  (
    'search:early_rejection',
    {'search.aggregate': 'mean'},
    'may rise as a chain grows',
  ),
  *(
    (
      job,
      GREEDY,
      r'policy.sampling.temperature=0\.0: \d+ completions would be equal',
    )
    for job in ('sample', 'label:rollouts', 'label:omega', 'search:majority')
  ),
  (
    'search:mcts',
    GREEDY | {'mcts.width': 1, 'mcts.rollouts': 8},
    r'policy.sampling.temperature=0\.0: 8 completions would be equal',
  ),
  (
    'search:refine',
    GREEDY | {'refine.samples': 1, 'refine.rounds': 4},
    r'policy.sampling.temperature=0\.0: 5 completions would be equal',
  ),
  (
    'label:judge',
    SERVED | {'judge.samples': 5, 'policy.endpoint.temperature': 0.0},
    r'policy.endpoint.temperature=0\.0: 5 completions would be equal',
  ),
]


@pytest.mark.parametrize(('job', 'values', 'line'), TOGETHER)
def test_values_that_do_not_go_together_are_named(job, values, line):
  with pytest.raises(UserError, match=line):
    read(job, **values)


def test_one_completion_needs_no_chance():
  assert read('label:judge', **SERVED, **{'policy.endpoint.temperature': 0.0})
  assert read('search:mcts', **GREEDY, **{'mcts.width': 1})
  once = {'refine.samples': 1, 'refine.rounds': 0}
  assert read('search:refine', **GREEDY, **once)


def test_a_policy_that_nobody_asks_may_be_unfinished():
  assert read('label:verifier', **{'policy.kind': 'endpoint'})
  assert read('search:majority', **{'prm.kind': 'workdir'})


@pytest.mark.parametrize(
  ('method', 'policy', 'prm', 'side'),
  [
    ('beam', 'workdir', 'exact', 'prm'),
    ('beam', 'recorded', 'workdir', 'policy'),
    ('majority', 'solver', 'workdir', 'policy'),
    ('majority', 'workdir', 'exact', None),
    ('beam', 'workdir', 'workdir', None),
  ],
)
def test_flops_are_limited_where_every_model_counts_them(
  method, policy, prm, side
):
  changes = {
    'budget.flops': 1e9,
    'policy.kind': policy,
    'policy.workdir': 'somewhere',
    'prm.kind': prm,
    'prm.path': 'somewhere',
  }
  if side is None:
    settings = read(f'search:{method}', **changes)
    assert settings.budget.to_budget().flops == 1e9
    return
  with pytest.raises(UserError, match=rf'{side}\.kind=.* does not count its'):
    read(f'search:{method}', **changes)


def test_all_faults_come_at_once():
  values = {
    'beam.samples': 0,
    'budget.tokens': 0,
    'mcts.prior': 'flat',
    'policy.sampling.slots': 0,
    'concurrent': 0,
  }
  config = configs.raw('search_math', 'beam', **values)
  config['policy']['sampling']['top_q'] = 1
  with pytest.raises(UserError) as error:
    read_settings(config)
  lines = str(error.value).splitlines()
  assert {line.split('=')[0] for line in lines} == {
    'config.policy.sampling.top_q',
    *(f'config.{name}' for name in values),
  }


@pytest.mark.parametrize(
  ('job', 'section', 'value'),
  [
    ('sample', 'problems', {}),
    ('label:rollouts', 'chains', {}),
    ('search:best_of_n', 'problems', {}),
    (
      'search:best_of_n',
      'problems',
      {'policy.kind': 'workdir', 'policy.workdir': '/policy'},
    ),
  ],
)
def test_what_knows_arithmetic_alone_meets_no_other_domain(job, section, value):
  """The solver, and exact scores, would end at the first problem."""
  name = 'prm.kind' if value else 'policy.kind'
  with pytest.raises(UserError) as error:
    read(job, **value, **{f'{section}.kind': 'logic'})
  assert str(error.value).startswith(f'config.{name}=')
  assert "problems are of the domain logic: expected 'workdir'" in str(
    error.value
  )
  # A file may have problems of arithmetic.
  kind = 'file' if section == 'problems' else 'files'
  assert read(job, **value, **{f'{section}.kind': kind})


EXACT = {'prm.kind': 'exact'}


@pytest.mark.parametrize(
  ('file', 'values', 'name'),
  [
    ('sample_math', {}, 'policy.kind'),
    ('search_math', {}, 'policy.kind'),
    (
      'search_math',
      {'policy.kind': 'workdir', 'policy.workdir': '/policy'},
      'prm.kind',
    ),
    ('rl_math', EXACT, 'prm.kind'),
    ('evaluate_math', EXACT, 'prm.kind'),
  ],
)
def test_what_knows_arithmetic_alone_meets_no_questions_to_a_critic(
  file, values, name
):
  assert configs.settings(file, 'tiny', **values)
  section = 'data' if file == 'evaluate_math' else 'problems'
  values = values | {f'{section}.critiques.style': 'thinkprm'}
  with pytest.raises(UserError) as error:
    configs.settings(file, 'tiny', **values)
  assert str(error.value).startswith(f'config.{name}=')
  assert "as critiques.style='thinkprm' says" in str(error.value)


def test_exact_scores_are_evaluated_on_arithmetic_alone():
  with pytest.raises(UserError, match=r"prm\.kind='exact': .* domain logic"):
    configs.settings('evaluate_math', 'logic,tiny', **EXACT)
  files = {'data.kind': 'files', 'evaluation.best_of_n': ''}
  assert configs.settings('evaluate_math', 'tiny', **EXACT, **files)


def test_an_evaluation_has_no_targets_of_a_policy():
  values = EXACT | {'targets.supervision': 'completion'}
  with pytest.raises(UserError, match="supervision='completion': is for polic"):
    configs.settings('evaluate_math', 'tiny', **values)


@pytest.mark.parametrize(
  ('name', 'value', 'why'),
  [
    *(
      ('base_url', url, 'expected http:// or https://')
      for url in (
        *('localhost:8000', 'http://', 'http://localhost:abc/v1'),
        *('http://localhost:80000/v1', 'http://[::1/v1', 'http://\u2603/v1'),
      )
    ),
    ('extra', '{"a": NaN}', 'expected JSON types'),
  ],
)
def test_what_a_client_could_not_send_is_refused(name, value, why):
  given = {'kind': 'endpoint', 'endpoint.base_url': 'http://a', name: value}
  given |= {'endpoint.model': 'm', f'endpoint.{name}': given.pop(name)}
  values = {f'policy.{key}': each for key, each in given.items()}
  with pytest.raises(UserError, match=rf'endpoint\.{name}=.*: {why}'):
    read('label:rollouts', **values)


def test_a_seed_beyond_64_bits_is_refused():
  with pytest.raises(UserError, match=r'config.seed=.*: expected <= 9223372'):
    read('label', seed=2**63)


@pytest.mark.parametrize(
  ('name', 'value', 'default'),
  [
    ('policy.endpoint.concurrency', 4, 16),
    ('policy.sampling.slots', 4, 64),
    ('policy.kind', 'endpoint', 'solver'),
    ('targets.neutral', 'bad', 'good'),
    ('targets.after_first_error', 'keep', 'mask'),
    ('targets.hard_above', 0.5, None),
  ],
)
def test_what_an_evaluation_does_not_read_is_refused(name, value, default):
  given = {'prm.path': 'a run', 'targets.supervision': 'outcome'}
  assert configs.settings('evaluate_math', 'tiny', **given)
  with pytest.raises(UserError) as error:
    configs.settings('evaluate_math', 'tiny', **given, **{name: value})
  assert str(error.value) == (
    f'config.{name}={value!r}: an evaluation does not read it; expected '
    f'{default!r}'
  )
