"""Every variant of every config can be read, and some run in their tiny form.

Other files of this folder run the others; VARIANTS says which.
"""

import ast
import json
import math
import pathlib
import runpy
import subprocess

import numpy as np
import pytest

import prm_jax
from tests.shared import command_line, configs
from tests.shared.command_line import ROOT
from tests.shared.real_data import few, shared

pytestmark = pytest.mark.job

BASES = (
  'llama3_8b',
  'qwen2_5_72b',
  'qwen2_5_math_1_5b',
  'qwen2_5_math_7b',
  'smollm2',
)
OPENED = ('qwen2_5_math_7b', 'qwen2_5_72b')  # tests/aot compiles them
# Config -> its variants but `tiny`, and those of them that bring a base. The
# notebooks run `small`, tests/jobs/test_main_base.py `from_run`.
VARIANTS = {
  'prm_math': (
    (
      *('human', 'frozen', 'lora', 'qlora', 'orm', 'words', 'logic', 'code'),
      *('from_run', 'small', 'benchmarks'),
    ),
    BASES,
  ),
  'policy_math': (
    ('lora', 'small', 'words', 'logic', 'code'),
    ('qwen2_5_math_7b', 'smollm2'),
  ),
  # Run by tests/jobs/test_critics.py.
  'verifier_math': (
    (
      *('thinkprm', 'genprm', 'r_prm', 'boxed_index', 'genrm', 'logic'),
      *('words', 'rl', 'small'),
    ),
    (),
  ),
  # Run by tests/jobs/test_evaluate.py and test_critics.py.
  'evaluate_math': (
    ('critic', 'logic', 'code', 'words', 'human', 'benchmarks', 'small'),
    (),
  ),
  # Run by tests/jobs/test_label.py.
  'label_math': (
    (
      *('verifier', 'rollouts', 'omega', 'judge', 'corruption'),
      *('consensus', 'active', 'small'),
    ),
    OPENED,
  ),
  'sample_math': (('gsm8k', 'small'), OPENED),
  # Run by tests/jobs/test_search.py.
  'search_math': (
    (
      *('best_of_n', 'majority', 'weighted_vote', 'beam', 'dvts', 'lookahead'),
      *('rebase', 'mcts', 'refine', 'early_rejection', 'gsm8k', 'words'),
      'small',
    ),
    OPENED,
  ),
  # Run by tests/jobs/test_rl.py.
  'rl_math': (
    ('grpo', 'rloo', 'ppo', 'outcome', 'prime', 'exact', 'small', 'words'),
    ('qwen2_5_math_7b',),
  ),
}
# What stands before a variant, and the values without which it is refused.
BEFORE = {
  ('prm_math', 'frozen'): 'smollm2,',
  ('prm_math', 'lora'): 'smollm2,',
  ('prm_math', 'qlora'): 'smollm2,',
  ('prm_math', 'benchmarks'): 'human,',
  ('policy_math', 'lora'): 'smollm2,',
  ('policy_math', 'words'): 'smollm2,',
  ('evaluate_math', 'benchmarks'): 'human,',
}
VALUES = {
  ('prm_math', 'from_run'): {'base': 'a run'},
  ('evaluate_math', 'critic'): {'prm.generative.path': 'a run'},
  ('label_math', 'active'): {'prm.path': 'a run'},
  ('label_math', 'judge'): {
    'policy.endpoint.base_url': 'http://localhost:8000/v1',
    'policy.endpoint.model': 'm',
  },
  ('search_math', 'gsm8k'): {'policy.workdir': 'a run', 'prm.path': 'a run'},
  ('search_math', 'words'): {'policy.workdir': 'a run', 'prm.path': 'a run'},
}
CHAIN = ('mod 10 : 7 * 3 + 4', ['7 * 3 = 1', '1 + 4 = 5'])
CANDIDATES = [CHAIN[1], ['7 * 3 = 2', '2 + 4 = 6'], ['7 * 3 = 1', '1 + 4 = 3']]
PROSE = ('What is 7 times 3, plus 4?', ['7 times 3 is 21.', '21 + 4 = 25.'])


def variant_line(variant: str, workdir: pathlib.Path) -> list[str]:
  return [f'--config=configs/prm_math.py:{variant}', f'--workdir={workdir}']


def output_of(done: subprocess.CompletedProcess) -> str:
  assert done.returncode == 0, done.stderr
  assert 'report: ' in done.stdout, done.stdout
  return done.stdout


def run_variant(variant: str, workdir: pathlib.Path, *args: str) -> str:
  (done,) = command_line.run_all([[*variant_line(variant, workdir), *args]])
  return output_of(done)


@pytest.fixture(scope='module')
def variants(tmp_path_factory):
  """Both at the same time: variant -> its workdir and what it said."""
  folder = tmp_path_factory.mktemp('variants')
  names = ('tiny', 'orm,tiny')
  ran = command_line.run_all([variant_line(x, folder / x) for x in names])
  return {
    name: (folder / name, output_of(done))
    for name, done in zip(names, ran, strict=True)
  }


@pytest.fixture(scope='module')
def tiny(variants):
  return variants['tiny']


@pytest.fixture(scope='module')
def tiny_orm(variants):
  return variants['orm,tiny']


def read(workdir: pathlib.Path) -> dict:
  """results.json, strictly JSON: no NaN, which no other language reads."""

  def refuse(name):
    raise AssertionError(f'{name} in results.json')

  text = (workdir / 'results.json').read_text()
  return json.loads(text, parse_constant=refuse)


def assert_manifest(manifest: dict, source: str) -> None:
  installed = {'jax', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'python'}
  assert installed <= set(manifest['versions'])
  assert all(manifest['versions'].values())
  head = subprocess.run(
    ['git', 'rev-parse', 'HEAD'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  if head.returncode == 0:
    commit = manifest['git_commit'].removesuffix('+').rpartition('-g')[2]
    assert len(commit) >= 12
  assert manifest['seeds'] == {'seed': 0}
  for name in ('data_fingerprint', 'encoding_fingerprint'):
    assert len(manifest[name]) == 16
    int(manifest[name], 16)
  assert manifest['threshold'].keys() == {'value', 'source'}
  assert source in manifest['threshold']['source']
  assert 0 <= manifest['threshold']['value'] <= 1
  assert manifest['wall_seconds'] > 0
  assert '--config=' in manifest['command']


def assert_metrics(workdir: pathlib.Path) -> None:
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  assert [line['step'] for line in lines if 'loss' in line] == [2, 4, 6]
  assert [line['step'] for line in lines if 'eval/brier' in line] == [3, 6]
  assert all(math.isfinite(v) for line in lines for v in line.values())


def assert_page(workdir: pathlib.Path, *words: str) -> None:
  page = (workdir / 'report.html').read_text()
  assert page.rstrip().endswith('</html>')
  for word in words:
    assert word in page, word


def test_tiny(tiny):
  workdir, stdout = tiny
  assert str(workdir / 'report.html') in stdout
  written = read(workdir)
  assert_manifest(written['manifest'], 'best F1 on 32 dev chains')
  assert written['manifest']['aggregate'] == 'min'
  results = written['results']
  assert results.keys() == {
    'best_of_n',
    'ranking',
    'localisation',
    'calibration',
    'diagnostics',
  }
  chosen_by = {'prm_min', 'prm_prod', 'prm_mean', 'prm_last', 'orm'}
  assert results['ranking'].keys() == {
    *chosen_by,
    'distinct_texts',
    'left_out',
  }
  curves = results['best_of_n']
  assert curves['n'] == [1, 2, 4, 8]
  assert curves.keys() == {
    *chosen_by,
    'n',
    'majority',
    'weighted_vote',
    'random',
    'random_per_text',
    'oracle',
  }
  # One sample is one sample, whoever picks it.
  first = {round(c['mean'][0], 9) for n, c in curves.items() if n != 'n'}
  assert len(first) == 1
  for n in range(4):
    assert curves['oracle']['mean'][n] >= curves['prm_min']['mean'][n]
  assert results['localisation'].keys() == {'arithmetic'}
  assert_metrics(workdir)
  assert_metrics(workdir / 'orm')
  assert_page(workdir, 'PRM on modular arithmetic (tiny)', 'arithmetic')


def test_tiny_shows_chains_of_both_kinds(tiny):
  workdir, _ = tiny
  lines = (workdir / 'chains.jsonl').read_text().splitlines()
  chains = [json.loads(line) for line in lines]
  assert chains
  for chain in chains:
    assert len(chain['scores']) == len(chain['steps']) == len(chain['labels'])
    assert all(0 <= score <= 1 for score in chain['scores'])
  assert {chain['chosen'] for chain in chains} == {True, False}


def test_tiny_keeps_the_scores_of_all_chains(tiny):
  workdir, _ = tiny
  lines = (workdir / 'step_scores.jsonl').read_text().splitlines()
  scores = {}
  for record in map(json.loads, lines):
    scores.setdefault(record['set'], {})[record['chain']] = record['scores']
  assert {name: [*found] for name, found in scores.items()} == {
    'dev': [*range(8 * 4)],
    'arithmetic': [*range(8 * 8)],
  }
  known = {*map(tuple, scores['arithmetic'].values())}
  lines = (workdir / 'chains.jsonl').read_text().splitlines()
  assert {tuple(json.loads(line)['scores']) for line in lines} <= known


def test_tiny_config_is_kept(tiny):
  workdir, _ = tiny
  config = json.loads((workdir / 'config.json').read_text())
  assert config['name'] == 'PRM on modular arithmetic (tiny)'
  assert config['train']['steps'] == 6
  assert config['targets']['supervision'] == 'process'
  data = json.loads((workdir / 'data.json').read_text())
  fingerprint = read(workdir)['manifest']['data_fingerprint']
  assert data == {'fingerprint': fingerprint}


@pytest.mark.parametrize('run', ['tiny', 'tiny_orm'])
def test_loads_and_scores_the_same_twice(run, request):
  workdir, _ = request.getfixturevalue(run)
  first, second = prm_jax.load(workdir), prm_jax.load(str(workdir))
  scores = first.score(*CHAIN)
  assert scores.shape == (2,)
  assert ((scores > 0) & (scores < 1)).all()
  np.testing.assert_array_equal(scores, second.score(*CHAIN))
  best, chain_scores, step_scores = first.best_of_n(CHAIN[0], CANDIDATES)
  again = second.best_of_n(CHAIN[0], CANDIDATES)
  assert best == again[0] == int(np.argmax(chain_scores))
  np.testing.assert_array_equal(chain_scores, again[1])
  assert chain_scores.shape == (3,)
  np.testing.assert_allclose(step_scores[0], scores, atol=1e-5)
  np.testing.assert_allclose(
    chain_scores, [min(s) for s in step_scores], atol=1e-6
  )


def test_the_two_models_of_a_run_differ(tiny):
  workdir, _ = tiny
  checkpoints = {p.name for p in (workdir / 'orm' / 'checkpoints').iterdir()}
  assert '6' in checkpoints
  curves = read(workdir)['results']['best_of_n']
  assert curves['orm']['mean'] != curves['prm_last']['mean']
  # Both can be opened, and are not taken for each other.
  prm, orm = prm_jax.load(workdir), prm_jax.load(workdir / 'orm')
  assert prm.name != orm.name
  assert not np.array_equal(prm.score(*CHAIN), orm.score(*CHAIN))


def test_tiny_orm(tiny_orm):
  workdir, _ = tiny_orm
  written = read(workdir)
  assert_manifest(written['manifest'], 'fixed')
  assert written['manifest']['threshold']['value'] == 0.5
  assert written['manifest']['aggregate'] == 'last'
  # An outcome model says nothing of single steps.
  assert written['results'].keys() == {'best_of_n', 'ranking'}
  assert written['results']['best_of_n'].keys() == {
    'n',
    'orm',
    'majority',
    'weighted_vote',
    'random',
    'random_per_text',
    'oracle',
  }
  assert_metrics(workdir)
  assert not (workdir / 'orm').exists()
  assert_page(workdir, 'ORM on modular arithmetic (tiny)')


@pytest.mark.slow  # reads all of the files; test_main_files has a small one
def test_tiny_human(tmp_path):
  """The real files: read, decontaminated, learned from, ProcessBench."""
  root = shared('processbench/gsm8k.json').parent.parent
  stdout = run_variant('human,tiny', tmp_path, f'--config.data.root={root}')
  assert 'contamination:' in stdout
  written = read(tmp_path)
  assert_manifest(written['manifest'], 'dev chains')
  localisation = written['results']['localisation']
  assert {'gsm8k', 'math'} <= localisation.keys()
  assert 'best_of_n' not in written['results']
  assert_metrics(tmp_path)
  assert_page(tmp_path, 'Byte-level PRM on human step labels (tiny)', 'gsm8k')
  chosen, scores, _ = prm_jax.load(tmp_path).best_of_n(
    PROSE[0], [PROSE[1], PROSE[1][:1]], 'mean'
  )
  assert scores[chosen] == scores.max()


@pytest.mark.slow
def test_tiny_base(tmp_path):
  """All but the weights, which tiny replaces: data, pool, evaluation, page.

  The others differ in numbers, which tests/aot/test_aot.py compiles.
  """
  root, workdir = few(tmp_path / 'data'), tmp_path / 'run'
  run_variant('smollm2,lora,tiny', workdir, f'--config.data.root={root}')
  results = read(workdir)['results']
  assert {'gsm8k', 'math'} == results['localisation'].keys()
  assert results['best_of_n']['n'] == [1, 2, 3, 4, 5, 6]
  assert len(results['best_of_n']['prm_min']['mean']) == 6


@pytest.mark.slow  # three jobs
def test_a_policy_learns_word_problems(tmp_path):
  pytest.importorskip('reasoning_gym', reason="needs 'prm_jax[words]'")
  policy, prm, learned = (tmp_path / name for name in ('policy', 'prm', 'rl'))
  for line in (
    (
      '--config=configs/policy_math.py:smollm2,words,tiny',
      f'--workdir={policy}',
      '--config.data.train_problems=16',
      # Problems in bytes are longer than in a base's tokens.
      '--config.data.max_length=1024',
      '--config.data.row_length=1024',
    ),
    (
      '--config=configs/prm_math.py:smollm2,words,tiny',
      f'--workdir={prm}',
      '--config.data.train_problems=16',
      '--config.data.max_length=1024',
      '--config.data.row_length=1024',
    ),
    (
      '--config=configs/rl_math.py:grpo,words,tiny',
      f'--workdir={learned}',
      f'--config.policy.workdir={policy}',
      f'--config.prm.path={prm}',
      '--config.problems.train_problems=16',
    ),
  ):
    (done,) = command_line.run_all([line])
    assert done.returncode == 0, done.stderr
  found = read(policy)['results']['sampling']['words']['policy']
  assert (found['problems'], found['samples']) == (4, 4)
  judged = read(prm)['results']
  assert judged['localisation'].keys() == {'words'}
  assert judged['best_of_n']['n'] == [1, 2, 4]
  lines = (learned / 'metrics.jsonl').read_text().splitlines()
  assert max(json.loads(line)['step'] for line in lines) == 4
  chains = [json.loads(line) for line in (learned / 'chains.jsonl').open()]
  assert all(chain['meta']['dataset'] == 'words' for chain in chains)


@pytest.mark.slow
@pytest.mark.parametrize('base', VARIANTS['policy_math'][1])
def test_tiny_policies_of_bases(base, tmp_path):
  root, workdir = few(tmp_path / 'data'), tmp_path / 'run'
  line = (
    f'--config=configs/policy_math.py:{base},lora,tiny',
    f'--workdir={workdir}',
    f'--config.data.root={root}',
  )
  (done,) = command_line.run_all([line])
  assert done.returncode == 0, done.stderr
  found = read(workdir)['results']['sampling']['gsm8k']['policy']
  assert (found['problems'], found['samples']) == (4, 4)


@pytest.mark.slow
def test_tiny_policy(tmp_path):
  (done,) = command_line.run_all(
    [['--config=configs/policy_math.py:tiny', f'--workdir={tmp_path}']]
  )
  assert done.returncode == 0, done.stderr
  assert 'results: ' in done.stdout
  assert read(tmp_path)['results']['sampling']['arithmetic'].keys() == {
    'policy',
    'data',
  }


def test_every_config_is_listed_here():
  """A new config has to be added to this file."""
  names = {path.stem for path in (ROOT / 'configs').glob('*_math.py')}
  assert names == VARIANTS.keys()


SMALL = 'small is for problems drawn from a domain, without a pretrained'


@pytest.mark.parametrize(
  ('name', 'variants', 'why'),
  [
    ('prm_math', 'tiny,smollm2', 'tiny comes last, and smollm2 follows it'),
    ('rl_math', 'small,grpo', 'small comes last, and grpo follows it'),
    ('rl_math', 'tiny,small', 'tiny comes last, and small follows it'),
    ('prm_math', 'smollm2,human', 'human is for a model from scratch'),
    ('prm_math', 'lora,smollm2', 'a base comes before adapters'),
    ('prm_math', 'human,small', SMALL),
    ('policy_math', 'smollm2,small', SMALL),
    ('policy_math', 'smollm2,words,small', SMALL),
    ('verifier_math', 'words,small', SMALL),
    ('verifier_math', 'rl,words,small', SMALL),
    ('rl_math', 'words,small', SMALL),
    ('rl_math', 'qwen2_5_math_7b,small', SMALL),
    ('evaluate_math', 'human,small', SMALL),
    ('evaluate_math', 'benchmarks,small', SMALL),
    ('sample_math', 'gsm8k,small', SMALL),
    ('sample_math', 'qwen2_5_72b,small', SMALL),
    ('search_math', 'beam,gsm8k,small', SMALL),
    ('search_math', 'beam,words,small', SMALL),
    ('search_math', 'qwen2_5_math_7b,small', SMALL),
    ('label_math', 'active,small', SMALL),
    ('label_math', 'consensus,small', SMALL),
    ('label_math', 'rollouts,qwen2_5_72b,small', SMALL),
    ('label_math', 'consensus,active', 'only one variant selects chains'),
    ('label_math', 'active,consensus', 'only one variant selects chains'),
    ('label_math', 'rollouts,consensus', 'consensus follows rollouts: it '),
    ('label_math', 'consensus,rollouts', 'rollouts follows consensus: a sou'),
    ('label_math', 'active,judge', 'judge follows active: a source comes'),
  ],
)
def test_variants_that_would_undo_others_are_refused(name, variants, why):
  get_config = runpy.run_path(f'{ROOT}/configs/{name}.py')['get_config']
  with pytest.raises(ValueError, match=why):
    get_config(variants)


@pytest.mark.parametrize(
  ('name', 'variants'),
  [
    ('prm_math', 'orm'),
    ('prm_math', 'words'),
    ('prm_math', 'from_run,lora'),
    ('policy_math', 'logic'),
    ('verifier_math', 'r_prm,logic'),
    ('verifier_math', 'rl'),
    ('evaluate_math', 'critic,code'),
    ('label_math', 'omega'),
    ('rl_math', 'prime'),
    ('sample_math', ''),
    ('search_math', 'beam'),
  ],
)
def test_small_shortens_what_it_names(name, variants):
  get_config = runpy.run_path(f'{ROOT}/configs/{name}.py')['get_config']
  whole, short = get_config(variants), get_config(f'{variants},small')
  assert short.name == f'{whole.name} (small)'
  section = next(k for k in ('problems', 'chains', 'data') if k in whole)
  assert short[section].test_problems < whole[section].test_problems
  if name == 'prm_math':
    assert short.train.steps < whole.train.steps
    for count in ('train_problems', 'test_samples'):
      assert short.data[count] <= whole.data[count]
    assert max(short.evaluation.ns) <= short.data.test_samples


@pytest.mark.parametrize(
  ('name', 'variants', 'title'),
  [
    ('prm_math', 'orm', 'ORM on modular arithmetic'),
    ('prm_math', 'logic', 'PRM on logic'),
    ('prm_math', 'logic,orm', 'ORM on logic'),
    ('prm_math', 'from_run,code', 'PRM on code, from a run'),
    ('prm_math', 'words,orm', 'Byte-level ORM on word problems'),
    ('prm_math', 'orm,words', 'Byte-level ORM on word problems'),
    ('prm_math', 'smollm2,orm', 'ORM from smollm2 on human step labels'),
    ('policy_math', 'smollm2,logic', 'Policy from smollm2 on logic'),
    ('evaluate_math', 'logic', 'Evaluation on logic'),
  ],
)
def test_a_title_says_on_what_a_job_works(name, variants, title):
  get_config = runpy.run_path(f'{ROOT}/configs/{name}.py')['get_config']
  assert get_config(variants).name == title


@pytest.mark.parametrize(
  ('variants', 'limit'),
  [
    ('critic', 128),
    ('critic,logic', 128),
    ('critic,words', 640),
    ('words,critic', 640),
  ],
)
def test_no_critique_of_word_problems_is_cut(variants, limit):
  """A critic of word problems writes up to the end of its window."""
  judged = configs.raw('evaluate_math', variants)['prm']['generative']
  assert judged['sampling']['max_tokens'] == limit
  learned = configs.raw('verifier_math', 'words')['data']
  assert limit in (128, learned['max_length'])


def test_a_labelling_job_has_the_name_of_what_it_does():
  path = f'{ROOT}/configs/label_math.py'
  get_config = runpy.run_path(path)['get_config']
  found = {
    arg: (config.name, config.select, config.source)
    for arg in ('', 'rollouts', 'active', 'rollouts,active', 'consensus')
    for config in (get_config(arg),)
  }
  convincing = 'of the most convincing wrong answers'
  assert found == {
    '': ('Labels', '', 'verifier'),
    'rollouts': ('Labels by rollouts', '', 'rollouts'),
    'active': (f'Labels {convincing}', 'active', 'verifier'),
    'rollouts,active': (
      *(f'Labels by rollouts {convincing}', 'active', 'rollouts'),
    ),
    'consensus': ('Labels that agree', 'consensus', 'given'),
  }


def test_small_jobs_are_of_the_same_problems():
  """No PRM may be tested on what its policy was trained on, or the reverse."""
  splits = set()
  for name in VARIANTS:
    path = ROOT / 'configs' / f'{name}.py'
    config = runpy.run_path(str(path))['get_config']('small')
    section = next(
      config[k] for k in ('problems', 'chains', 'data') if k in config
    )
    # Test and dev problems are drawn first; training goes on from there.
    splits.add((section.test_problems, section.dev_problems))
    assert dict(section.arithmetic).items() >= {'operations': 5}.items()
  assert len(splits) == 1


@pytest.mark.parametrize('config', VARIANTS)
def test_every_variant_is_listed_here(config):
  """A new variant has to be added to this file."""
  tree = ast.parse((ROOT / 'configs' / f'{config}.py').read_text())
  docstring = ast.get_docstring(tree)
  (table,) = (
    node.value
    for node in ast.walk(tree)
    if isinstance(node, ast.Assign)
    and getattr(node.targets[0], 'id', '') == 'variants'
  )
  variants = [key.value for key in table.keys]
  plain, bases = VARIANTS[config]
  assert sorted(variants) == sorted([*plain, *bases, 'tiny'])
  for name in variants:
    assert f'\n    {name}  ' in docstring


@pytest.mark.parametrize('config', VARIANTS)
def test_every_variant_can_be_read(config):
  plain, bases = VARIANTS[config]
  of_all = {'prm.path': 'a run'} if config == 'evaluate_math' else {}
  for variant in (*plain, *bases):
    before = BEFORE.get((config, variant), '')
    after = '' if variant == 'small' else ',tiny'
    values = VALUES.get((config, variant), of_all)
    read = configs.settings(config, f'{before}{variant}{after}', **values)
    assert read.name.endswith(' (tiny)' if after else ' (small)')


@pytest.mark.parametrize(
  ('config', 'variants'),
  [
    ('prm_math', 'smollm2,words'),
    ('policy_math', 'smollm2,words'),
    ('policy_math', 'smollm2,logic'),
    ('prm_math', 'smollm2,code'),
    ('prm_math', 'human,logic'),
    ('prm_math', 'qwen2_5_math_7b,logic'),
    ('prm_math', 'llama3_8b,code'),
    ('policy_math', 'qwen2_5_math_7b,words'),
  ],
)
def test_a_domain_takes_the_place_of_the_files_of_a_variant(config, variants):
  data = configs.settings(config, variants).data
  kind = variants.split(',')[1]
  assert data.kind == kind and data.evaluation_names == (kind,)
  assert not (data.train or data.evaluations or data.decontaminate)
