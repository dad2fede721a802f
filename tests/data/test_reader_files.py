"""Tests the readers on real files and counts their records a second time."""

import json
import re

import pytest

from prm_jax.data.chains import first_error
from prm_jax.data.readers import ReadSummary, read_chains
from tests.shared.real_data import shared


def lines(path):
  return [json.loads(line) for line in path.read_text('utf-8').splitlines()]


def test_prm800k_subset():
  path = shared('prm800k/prm800k_subset.jsonl')
  chains, summary = read_chains(path, 'prm800k_flat')
  assert summary == ReadSummary(1339, 1339, 9377, {}, 0)
  labels = [label for chain in chains for label in chain.labels]
  assert sum(label.value == 0 for label in labels) == 1110
  assert sum(label.neutral for label in labels) == 606
  assert len({chain.problem for chain in chains}) == 216
  assert sum(chain.answer is not None for chain in chains) == 252


def test_raw_prm800k():
  path = shared('format_samples/samples_prm800k.jsonl')
  chains, summary = read_chains(path, 'prm800k')
  # Counted by hand: record 1 has 1+5+1+1+1+5 ratings on 10 paths, record 2 has
  # 10 on 4, record 3 has 11 on 7, record 4 has 13 on 7.
  skipped = {'give_up': 1, 'initial screening': 1}
  assert summary == ReadSummary(6, 28, 48, skipped, 0)
  rated = [
    completion['rating']
    for record in lines(path)[:4]
    for step in record['label']['steps']
    for completion in step['completions']
  ]
  assert len(rated) == summary.ratings
  wrong = sum(s.value == 0 for chain in chains for s in chain.labels)
  assert wrong == rated.count(-1)
  # In phase 2 the path is the pre-generated solution up to its first error.
  phase_2 = chains[10]
  assert [s.value for s in phase_2.labels] == [1, 1, 1, 1, 1, 1, 0]
  assert [s.neutral for s in phase_2.labels] == [i == 1 for i in range(7)]
  first = lines(path)[1]['question']['pre_generated_steps']
  assert list(phase_2.steps) == first[:7]


def test_math_shepherd():
  path = shared('format_samples/samples_math-shepherd.jsonl')
  chains, summary = read_chains(path, 'math_shepherd')
  assert summary == ReadSummary(7, 7, 25, {}, 0)
  assert [len(chain.steps) for chain in chains] == [5, 3, 2, 5, 5, 2, 3]
  answers = ['13520', '16000', '40', '900', '52', '2.2', '210']
  assert [chain.answer for chain in chains] == answers
  assert [chain.outcome for chain in chains] == [False] * 7
  assert [s.value for s in chains[0].labels] == [1, 1, 1, 1, 0]
  for chain, record in zip(chains, lines(path), strict=True):
    signs = {1.0: '+', 0.0: '-'}
    parts = [
      f'{step} {signs[label.value]}'
      for step, label in zip(chain.steps, chain.labels, strict=True)
    ]
    assert f'{chain.problem} ' + '\n'.join(parts) == record['label']


def test_math_aps():
  path = shared('format_samples/samples_math-aps.jsonl')
  chains, summary = read_chains(path, 'math_aps')
  # There are 90, 13 and 42 prefixes; one of each is the bare question.
  assert summary == ReadSummary(3, 134, 142, {}, 0)
  for record in lines(path):
    values = [entry['mc_value'] for entry in record['reasoning_steps'][1:]]
    made = [
      label.value
      for chain in chains
      if chain.problem == record['question']
      for label in chain.labels
      if label.value is not None
    ]
    assert sorted(made) == sorted(values)
    assert record['reasoning_steps'][0]['solution_prefix'] == record['question']


def nodes(tree):
  yield tree
  for child in tree['children']:
    yield from nodes(child)


def test_math_aps_tree():
  path = shared('format_samples/samples_math-aps-tree.jsonl')
  chains, summary = read_chains(path, 'math_aps_tree')
  below = [
    node
    for record in lines(path)
    for node in list(nodes(record['reasoning_steps']))[1:]
  ]
  leaves = [node for node in below if not node['children']]
  assert summary == ReadSummary(3, len(leaves), len(below), {}, 0)
  assert (len(leaves), len(below)) == (242, 254)
  assert all(label.source == 'rollout' for c in chains for label in c.labels)


@pytest.mark.parametrize(
  ('name', 'records', 'right', 'ratings'),
  [('gsm8k', 400, 193, 1568), ('math', 1000, 406, 4366)],
)
def test_processbench(name, records, right, ratings):
  path = shared(f'processbench/{name}.json')
  chains, summary = read_chains(path, 'processbench')
  assert summary == ReadSummary(records, records, ratings, {}, 0)
  without_error = [
    all(label.value == 1 for label in chain.labels) for chain in chains
  ]
  assert sum(without_error) == right
  raw = json.loads(path.read_text('utf-8'))
  for chain, record in zip(chains, raw, strict=True):
    values = [label.value for label in chain.labels]
    first = record['label']
    assert values.index(0) == first if first >= 0 else 0 not in values
    assert chain.outcome is record['final_answer_correct']


def test_verify_then_generate():
  path = shared('verify_then_generate/dataset.json')
  chains, summary = read_chains(path, 'verify_then_generate')
  raw = json.loads(path.read_text('utf-8'))
  ratings = sum(record['incorrect_index'] + 1 for record in raw)
  assert summary == ReadSummary(1002, 1002, ratings, {}, 0)
  for chain, record in zip(chains, raw, strict=True):
    first = [label.value for label in chain.labels].index(0)
    assert chain.steps[first] == record['incorrect_step'].strip()


@pytest.mark.parametrize(
  ('name', 'records', 'past_end', 'blank'),
  [
    ('circular', 401, 3, 0),
    ('confidence', 400, 8, 1),
    ('counterfactual', 401, 10, 0),
    ('deception', 399, 12, 0),
    ('domain_inconsistency', 400, 2, 0),
    ('missing_condition', 400, 16, 0),
    ('redundency', 401, 4, 0),
    ('step_contradiction', 401, 2, 0),
  ],
)
def test_prmbench(name, records, past_end, blank):
  path = shared(f'prmbench_train/prm800k_train_p1_first400_4o_{name}.jsonl')
  chains, summary = read_chains(path, 'prmbench')
  assert summary.records == records
  assert summary.skipped.get('error_steps past the last step') == past_end
  assert summary.skipped.get('blank step', 0) == blank
  assert len(chains) == records - past_end - blank
  by_id = {record['idx']: record for record in lines(path)}
  for chain in chains:
    wrong = [i for i, s in enumerate(chain.labels, 1) if s.value == 0]
    assert wrong == sorted(by_id[chain.meta['id']]['error_steps'])

  originals, summary = read_chains(path, 'prmbench_original')
  assert len(originals) == summary.chains == records - blank
  assert all(s.value == 1 for chain in originals for s in chain.labels)


@pytest.mark.parametrize(
  ('name', 'records', 'chains', 'wrong', 'steps', 'ratings', 'subjects'),
  [
    ('biology', 519, 517, 207, 3148, 2456, 2),
    ('chemistry', 424, 424, 232, 2738, 1838, 2),
    ('coding', 118, 109, 70, 2816, 1944, 1),
    ('math', 459, 458, 392, 3551, 1630, 2),
    ('medicine', 416, 414, 301, 2580, 1618, 1),
    ('physics', 334, 333, 181, 2186, 1485, 2),
  ],
)
def test_mr_ben(name, records, chains, wrong, steps, ratings, subjects):
  path = shared(f'domains/mr_ben/{name}.jsonl')
  read, summary = read_chains(path, 'mr_ben')
  assert (summary.records, summary.chains) == (records, chains)
  assert (summary.ratings, summary.quarantined) == (ratings, 0)
  assert sum(len(chain.steps) for chain in read) == steps
  assert sum(first_error(chain.labels) >= 0 for chain in read) == wrong
  assert len({chain.meta['subject'] for chain in read}) == subjects
  raw = lines(path)
  unnumbered = 0
  for chain in read:
    record = raw[int(chain.meta['id'].split(':')[1]) - 1]
    error = record['Model_Solution_First_Error_Step']
    first = first_error(chain.labels)
    if error == 'N/A':
      assert first == -1
      assert chain.outcome is True
    elif name == 'coding':
      assert chain.steps[first] == error.rstrip()
    elif not re.search(rf'(?mi)^s?tep {error}\b', chain.steps[first]):
      unnumbered += 1
      assert re.match('Step n|Solution', chain.steps[first])
    text = record['Model_Solution_Steps']
    text = text if isinstance(text, str) else '\n'.join(text)
    assert '\n'.join(chain.steps).split() == text.split()
  assert unnumbered <= 1


def is_program(code):
  try:
    compile(code, 'code', 'exec')
  except SyntaxError:
    return False
  return True


def test_mr_ben_code_is_a_program_where_it_was_one():
  path = shared('domains/mr_ben/coding.jsonl')
  chains, summary = read_chains(path, 'mr_ben')
  assert summary.skipped == {'no one step is the first error': 9}
  raw = lines(path)
  programs = 0
  for chain in chains:
    record = raw[int(chain.meta['id'].split(':')[1]) - 1]
    found = is_program('\n'.join(chain.steps))
    assert found == is_program(record['Model_Solution_Steps'])
    programs += found
  assert programs > 90


@pytest.mark.parametrize(
  ('name', 'records', 'blank', 'wrong', 'right'),
  [
    ('dyck_languages', 986, 1, 649, 485),
    ('logical_deduction', 300, 0, 294, 45),
    ('tracking_shuffled_objects', 300, 0, 260, 45),
    ('word_sorting', 300, 0, 266, 48),
  ],
)
def test_big_bench_mistake(name, records, blank, wrong, right):
  path = shared(f'domains/big_bench_mistake/{name}.jsonl')
  chains, summary = read_chains(path, 'big_bench_mistake')
  assert (summary.records, summary.chains) == (records, records - blank)
  assert sum(summary.skipped.values()) == blank
  assert {chain.meta['subject'] for chain in chains} == {name}
  assert sum(chain.outcome for chain in chains) == right
  first = [first_error(chain.labels) for chain in chains]
  assert sum(i >= 0 for i in first) == wrong
  raw = lines(path)
  for i, chain in zip(first, chains, strict=True):
    record = raw[int(chain.meta['id'].split(':')[1]) - 1]
    assert record['mistake_index'] == (None if i < 0 else i)
    known = [label.value is not None for label in chain.labels]
    assert sum(known) == (len(known) if i < 0 else i + 1)


@pytest.mark.parametrize(
  ('name', 'records', 'ratings', 'wrong', 'without_premises'),
  [('negatives', 57, 294, 164, 0), ('positives', 50, 224, 7, 1)],
)
def test_parc(name, records, ratings, wrong, without_premises):
  path = shared(f'domains/parc/gsm8k_{name}.json')
  chains, summary = read_chains(path, 'parc')
  assert summary == ReadSummary(records, records, ratings, {}, 0)
  labels = [label for chain in chains for label in chain.labels]
  assert {label.source for label in labels} == {'judge'}
  assert sum(label.value == 0 for label in labels) == wrong
  assert {chain.outcome for chain in chains} == {name == 'positives'}
  raw = json.loads(path.read_text('utf-8'))
  missing = 0
  for chain, record in zip(chains, raw, strict=True):
    if 'premises' not in chain.meta:
      missing += 1
      continue
    annotated = record['premise_annotation']['steps'][1:]
    assert len(chain.meta['premises']) == len(chain.steps)
    for numbers, step in zip(chain.meta['premises'], annotated, strict=True):
      assert set(numbers) == {number for number, _ in step['premises']}
  assert missing == without_premises
