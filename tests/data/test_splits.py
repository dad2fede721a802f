"""Which problems are trained on, held out for dev, or left out."""

import dataclasses
import json
import os

import pytest

from prm_jax.data import builder, chain_sets, contamination
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.config import DataConfig
from prm_jax.data.datasets import (
  file_splits,
  in_dev_split,
  labelled_chains,
  load_dataset,
)
from prm_jax.data.domain_splits import drawn_splits
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import write_json
from tests.data.reader_examples import example
from tests.shared.real_data import shared


def chain(problem, **meta):
  return Chain(problem, ('a',), labels=(StepLabel(1.0),), meta=meta)


def variants(i):
  """Chains of one problem, which no single text connects."""
  return [
    chain(f'Problem {i}?', original_problem=f'$P_{{{i}}}$?', group=f'g{i}'),
    chain(f'Q {i}?', original_problem=f'Reworded {i}?', group=f'g{i}'),
    chain(f'Reworded {i}.'),
  ]


def test_variants_of_a_problem_are_in_one_split():
  sets = [variants(i) for i in range(200)]
  flat = [each for of_one in sets for each in of_one]
  found = in_dev_split(flat, 0.3)
  assert found == in_dev_split(flat[::-1], 0.3)[::-1]
  by_set = [found[3 * i : 3 * i + 3] for i in range(200)]
  assert all(len({*each}) == 1 for each in by_set)
  assert 0.2 < sum(found) / len(found) < 0.4
  # Without the groups their texts alone would be split.
  bare = [dataclasses.replace(it, meta={}) for it in flat]
  alone = in_dev_split(bare, 0.3)
  assert sum(alone[3 * i] != alone[3 * i + 1] for i in range(200)) > 20


def test_a_problem_is_in_one_split_wherever_it_comes_from():
  pairs = [
    (chain(f'New {i}?', original_problem=f'Old {i}?'), chain(f'New {i}?'))
    for i in range(200)
  ]
  found = in_dev_split([each for pair in pairs for each in pair], 0.5)
  assert found[::2] == found[1::2]
  assert 60 < sum(found[::2]) < 140


def test_layout_does_not_change_the_split():
  one = [chain(f'Is (1,{i}) on x^{{{i}}}?') for i in range(50)]
  other = [chain(f'Is $(1, {i})$ on x^{i}') for i in range(50)]
  assert in_dev_split(one, 0.5) == in_dev_split(other, 0.5)


def write(path, problems):
  path.write_text(
    ''.join(json.dumps({'problem': text}) + '\n' for text in problems)
  )


def prmbench(i):
  return {
    'original_question': f'Original {i}?',
    'modified_question': f'Modified {i}?',
    'original_process': ['a'],
    'modified_process': ['a'],
    'error_steps': [1],
    'classification': 'circular',
    'idx': f'circular_{i}',
  }


def test_labels_are_of_no_problem_that_the_config_leaves_out(tmp_path):
  """Of none in an evaluation, a file of decontaminate, or dev."""
  human = [
    {'id': str(i), 'problem': f'P{i}?', 'steps': ['a'], 'ratings': [1]}
    for i in range(20)
  ]
  lines = ''.join(json.dumps(each) + '\n' for each in human)
  (tmp_path / 'human.jsonl').write_text(lines)
  changed = ''.join(json.dumps(prmbench(i)) + '\n' for i in range(2))
  (tmp_path / 'changed.jsonl').write_text(changed)
  write(tmp_path / 'known.jsonl', ['Known?'])
  problems = ('Known', 'Original 1.', 'Modified 0?', 'Mine?')
  dataset = chain_sets.write(
    tmp_path / 'labels', 'labels', [chain(text) for text in problems]
  )
  write_json(tmp_path / 'labels' / 'results.json', {'dataset': dataset})
  config = DataConfig(
    kind='files',
    root=str(tmp_path),
    train=(('human.jsonl', 'prm800k_flat'),),
    evaluations={'changed': ('changed.jsonl', 'prmbench')},
    decontaminate=('known.jsonl',),
    dev_share=0.3,
    labels=str(tmp_path / 'labels'),
  )
  said = []
  splits = file_splits(config, 0, tmp_path, said.append)
  kept = labelled_chains(config, splits, said.append)
  assert [each.problem for each in kept] == ['Mine?']
  assert any('of 1 problems, are in known.jsonl' in line for line in said)
  assert any('of 2 problems, are in changed' in line for line in said)


@pytest.mark.parametrize(
  ('fmt', 'name'), [('mr_ben', 'Question'), ('agent_process_bench', 'question')]
)
@pytest.mark.parametrize('as_evaluation', [True, False])
def test_a_question_is_found_without_what_its_reader_joins_to_it(
  tmp_path, fmt, name, as_evaluation
):
  """Mr-Ben's problems have options, AgentProcessBench's first messages."""
  tested = example(fmt) | {name: 'Is it tested?'}
  (tmp_path / 'tested.jsonl').write_text(json.dumps(tested) + '\n')
  human = [
    {'id': str(i), 'problem': text, 'steps': ['a'], 'ratings': [1]}
    for i, text in enumerate(['is it tested', *(f'P{i}?' for i in range(20))])
  ]
  lines = ''.join(json.dumps(each) + '\n' for each in human)
  (tmp_path / 'human.jsonl').write_text(lines)
  config = DataConfig(
    kind='files',
    root=str(tmp_path),
    train=(('human.jsonl', 'prm800k_flat'),),
    evaluations={'bench': ('tested.jsonl', fmt)} if as_evaluation else {},
    decontaminate=() if as_evaluation else ('tested.jsonl',),
    dev_share=0.3,
  )
  splits = file_splits(config, 0, tmp_path, print)
  kept = {each.problem for each in (*splits.train, *splits.dev)}
  assert kept == {f'P{i}?' for i in range(20)}


@pytest.mark.parametrize('seed', [0, 1, 2])
def test_words_have_no_template_of_an_evaluation(tmp_path, seed):
  """All templates are of GSM8K's test problems, and none of MATH's."""
  pytest.importorskip('reasoning_gym', reason="needs 'prm_jax[words]'")
  gsm8k, math = shared('gsm8k/test.jsonl'), shared('processbench/math.json')
  human = [
    {'id': str(i), 'problem': f'P{i}?', 'steps': ['a'], 'ratings': [1]}
    for i in range(20)
  ]
  lines = ''.join(json.dumps(each) + '\n' for each in human)
  (tmp_path / 'others.jsonl').write_text(lines)

  def words_beside(path):
    os.symlink(path, tmp_path / path.name)
    config = DataConfig(
      kind='files',
      root=str(tmp_path),
      train=(('others.jsonl', 'prm800k_flat'),),
      decontaminate=(path.name,),
      dev_share=0.3,
      words_problems=200,
    )
    said = []
    splits = file_splits(config, seed, tmp_path, said.append)
    every = [*splits.train, *splits.dev]
    return [c for c in every if 'template' in c.meta], said

  kept, said = words_beside(gsm8k)
  assert kept == []
  assert any('word templates have the wording' in line for line in said)
  kept, _ = words_beside(math)
  assert len(kept) == 200


def test_chains_are_hashed_once_and_each_problem_is_normalised_once(
  tmp_path, monkeypatch
):
  human = [
    {'id': f'{i}/{k}', 'problem': f'P{i}?', 'steps': ['a'], 'ratings': [1]}
    for i in range(20)
    for k in range(3)
  ]
  lines = ''.join(json.dumps(each) + '\n' for each in human)
  (tmp_path / 'human.jsonl').write_text(lines)
  write(tmp_path / 'known.jsonl', ['Known?'])
  config = DataConfig(
    kind='files',
    root=str(tmp_path),
    train=(('human.jsonl', 'prm800k_flat'),),
    decontaminate=('known.jsonl',),
    dev_share=0.3,
  )
  hashed, normalised = [], []
  canonical, normalise = builder._canonical, contamination.normalise

  def count_hashed(chain, i):
    hashed.append(chain.meta['id'])
    return canonical(chain, i)

  def count_normalised(text):
    normalised.append(text)
    return normalise(text)

  monkeypatch.setattr(builder, '_canonical', count_hashed)
  monkeypatch.setattr(contamination, 'normalise', count_normalised)
  contamination.compared.cache_clear()

  found = load_dataset(config, 0, tmp_path / 'work', print)
  assert sorted(hashed) == sorted(each['id'] for each in human)
  assert sorted(normalised) == sorted(
    ['Known?', *(f'P{i}?' for i in range(20))]
  )
  # What is handed on are the fingerprints of the chains.
  for split in ('train', 'dev'):
    kept = builder.load(tmp_path / 'work' / 'data', found.encoded.name, split)
    assert kept.fingerprint == builder.fingerprint(getattr(found, split))


def test_labels_need_no_test_problems(tmp_path):
  dataset = chain_sets.write(tmp_path / 'labels', 'labels', [chain('Mine?')])
  write_json(tmp_path / 'labels' / 'results.json', {'dataset': dataset})
  config = DataConfig(test_problems=0, labels=str(tmp_path / 'labels'))
  splits = drawn_splits('arithmetic', config, (1, 1, 1), 0)
  kept = labelled_chains(config, splits, print)
  assert [each.problem for each in kept] == ['Mine?']


def test_labels_are_decontaminated_beside_a_domain(tmp_path):
  chains = [chain('Mine?'), chain('Known?')]
  dataset = chain_sets.write(tmp_path / 'labels', 'labels', chains)
  write_json(tmp_path / 'labels' / 'results.json', {'dataset': dataset})
  write(tmp_path / 'known.jsonl', ['known'])
  config = DataConfig(
    root=str(tmp_path),
    decontaminate=('known.jsonl',),
    labels=str(tmp_path / 'labels'),
  )
  splits = drawn_splits('arithmetic', config, (1, 1, 1), 0)
  kept = labelled_chains(config, splits, print)
  assert [each.problem for each in kept] == ['Mine?']


@pytest.mark.parametrize('original', [None, 3, '', ' ', ['a']])
def test_an_original_problem_is_text(original):
  with pytest.raises(
    UserError, match=r'meta\.original_problem is .*: expected'
  ):
    chain('a?', original_problem=original)
