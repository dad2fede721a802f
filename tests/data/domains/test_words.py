"""Tests word problems by reading their text again in another way."""

import ast
import collections
import dataclasses
import importlib.util
import operator
import re
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from prm_jax.data import chains as chains_lib
from prm_jax.data.domains import corruptions, word_templates, words
from prm_jax.runtime.errors import UserError

needs_package = pytest.mark.skipif(
  importlib.util.find_spec('reasoning_gym') is None,
  reason="reasoning-gym is not installed: pip install 'prm_jax[words]'",
)
GROUPS = ('train', 'held_out')
LOCALLY_RIGHT = {
  'wrong_operand',
  'wrong_operator',
  'copied_number',
  'skipped_step',
}


@pytest.fixture(scope='module', params=GROUPS)
def wrong(request):
  """Returns the config and pairs of a wrong and a right chain per problem.

  There are enough pairs for every template and kind of error.
  """
  count = {'train': 4000, 'held_out': 1200}[request.param]
  config = words.WordsConfig(request.param, error_share=1.0)
  plain = dataclasses.replace(config, error_share=0.0, repeat_share=0.0)
  right = {c.problem: c for c in words.make_chains(plain, count, seed=0)}
  chains = words.make_chains(config, count, seed=0)
  pairs = [(c, right[c.problem]) for c in chains if c.problem in right]
  assert len(pairs) > 0.95 * count
  return config, pairs


_OPERATORS = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
}


def in_floats(node):
  if isinstance(node, ast.BinOp):
    left, right = in_floats(node.left), in_floats(node.right)
    return _OPERATORS[type(node.op)](left, right)
  assert isinstance(node, ast.Constant)
  return float(node.value)


def equations_of(step):
  """Yields both sides of each equation, by Python's own parser, in floats."""
  text = re.sub(r'(?<=\d),(?=\d{3})', '', step)
  text = re.sub(r'/[a-zA-Z]+', '', text)
  for signs, sign in (
    ('equals', '='),
    ('divided by', '/'),
    ('times|\xd7| x ', '*'),
    ('plus', '+'),
    ('minus', '-'),
    ('\xf7', '/'),
  ):
    # '3 times per year' and '3 times as many' are not products.
    text = re.sub(rf'({signs})(?=\s*[$€£]?\d)', sign, text)
  text = re.sub(r'(\d+(?:\.\d+)?)%', r'(\1/100)', text)
  text = re.sub(r'(\d)\((?=\d)', r'\1*(', text)
  text = re.sub('[$€£]', '', text)
  for match in re.finditer(r'=\s*(\(\d[\d.]*/100\)|\d+(?:\.\d+)?)', text):
    before = text[: match.start()].rpartition('=')[2]
    left = re.split(r'[^\d.()+*/\-\sa-zA-Z]|\.\s|- [A-Z]', before)[-1]
    left = re.sub('[a-zA-Z]+', ' ', left)
    starts = [m.start() for m in re.finditer(r'[\d(]', left)]
    for start in starts:
      if start and left[start - 1] in '.0123456789':
        continue
      try:
        tree = ast.parse(left[start:].strip(), mode='eval').body
      except SyntaxError:
        continue
      if isinstance(tree, ast.BinOp):
        right = ast.parse(match[1], mode='eval').body
        yield in_floats(tree), in_floats(right)
      break


def false_steps(chain):
  return [
    i
    for i, step in enumerate(chain.steps)
    if any(abs(a - b) > 1e-9 * abs(b) for a, b in equations_of(step))
  ]


def masked(step):
  """Masks what an error may change in a step: numbers and operators."""
  step = re.sub(r'\d[\d,]*(\.\d+)?', '#', step)
  signs = r'divided by|\b(times|plus|minus|x)\b|[-+*/\xd7\xf7]'
  return re.sub(signs, '?', step)


@needs_package
def test_most_templates_can_be_used():
  found = {g: words.profile_templates(words.WordsConfig(g)) for g in GROUPS}
  assert not set(found['train']) & set(found['held_out'])
  assert {len(found['train']), len(found['held_out'])} == {80, 20}
  usable = {g: [t for t, x in found[g].items() if not x.reason] for g in GROUPS}
  assert len(usable['train']) >= 55
  assert len(usable['held_out']) >= 14
  offered = collections.Counter(
    kind for g in GROUPS for x in found[g].values() for kind in x.kinds
  )
  assert set(offered) == set(corruptions.KINDS)
  assert min(offered.values()) >= 65
  # A template offers kinds of error or says why it cannot be used.
  for g in GROUPS:
    for x in found[g].values():
      assert bool(x.reason) != bool(x.kinds)


@pytest.mark.slow
@needs_package
def test_every_kind_occurs_in_every_template_that_offers_it(wrong):
  config, pairs = wrong
  seen = {(c.meta['template'], c.meta['kind']) for c, _ in pairs}
  offered = {
    (t, kind)
    for t, template in words.profile_templates(config).items()
    for kind in template.kinds
  }
  assert offered <= seen
  held_out = {t in word_templates.HELD_OUT for t, _ in seen}
  assert held_out == {config.templates == 'held_out'}
  # All kinds are about equally frequent, within a fifth of the mean.
  counts = collections.Counter(c.meta['kind'] for c, _ in pairs)
  assert max(counts.values()) < 1.2 * len(pairs) / 6
  assert min(counts.values()) > 0.8 * len(pairs) / 6


@needs_package
def test_equations_of_right_chains_hold(wrong):
  found = total = 0
  for _, right in wrong[1]:
    assert false_steps(right) == []
    assert right.outcome is True
    assert right.meta['kind'] == 'right' and right.meta['error_steps'] == []
    assert {label.value for label in right.labels} == {1.0}
    assert right.steps[-1] == f'The answer is {right.answer}.'
    found += sum(len(list(equations_of(step))) for step in right.steps)
    total += sum(len(re.findall(r'=|\bequals\b', step)) for step in right.steps)
  # This test reads nearly every equals sign as an equation.
  assert found > 0.95 * total


@needs_package
def test_exactly_the_planted_steps_have_false_equations(wrong):
  for chain, _ in wrong[1]:
    kind = chain.meta['kind']
    expected = [] if kind in LOCALLY_RIGHT else chain.meta['error_steps']
    assert false_steps(chain) == expected, chain
    assert len(chain.meta['error_steps']) == 1 + (kind == 'two_errors')


@needs_package
def test_labels_say_which_steps_differ_from_the_right_chain(wrong):
  unknown = 0
  for chain, right in wrong[1]:
    truth = list(right.steps)
    if chain.meta['kind'] == 'skipped_step':
      kept = [masked(step) for step in chain.steps]
      (gap, *_) = [
        i
        for i in range(len(truth))
        if [masked(s) for s in truth[:i] + truth[i + 1 :]] == kept
      ]
      del truth[gap]
    differs = [a != b for a, b in zip(chain.steps, truth, strict=True)]
    first = differs.index(True)
    assert chain.meta['error_steps'][0] == first
    assert chains_lib.first_error(chain.labels) == first
    for i, (label, other) in enumerate(zip(chain.labels, differs, strict=True)):
      expected = 0.0 if other else 1.0 if i < first else None
      assert label == chains_lib.StepLabel(expected, 'verifier')
      unknown += expected is None
      assert masked(chain.steps[i]) == masked(truth[i])
  assert unknown > 100


@needs_package
def test_outcomes_match_the_answers(wrong):
  for chain, right in wrong[1]:
    kind = chain.meta['kind']
    same = float(chain.answer) == float(right.answer)
    assert chain.outcome is same
    assert same is (kind == 'two_errors')
    assert chain.steps[-1] == f'The answer is {chain.answer}.'
    # The last result must be the answer, unless the last step is wrong.
    if chain.meta['error_steps'] == [len(chain.steps) - 1]:
      assert kind == 'skipped_step'
      continue
    *_, (_, result) = (e for s in chain.steps for e in equations_of(s))
    percent = abs(result * 100 - float(chain.answer)) < 1e-6
    assert percent or abs(result - float(chain.answer)) < 1e-6


@needs_package
def test_a_wrong_result_replaces_the_right_one_wherever_it_is_repeated(wrong):
  checked = 0
  for chain, right in wrong[1]:
    if chain.meta['kind'] != 'wrong_result':
      continue
    at = chain.meta['error_steps'][0]
    pairs = list(equations_of(right.steps[at]))
    if len(pairs) != 1 or pairs[0][1] < 100:
      continue
    text = f'{pairs[0][1]:g}'
    pattern = rf'(?<![\d.,]){re.escape(text)}(?![\d]|[.,]\d)'
    if re.search(pattern, ' '.join([right.problem, *right.steps[:at]])):
      continue
    results = [b for s in right.steps for _, b in equations_of(s)]
    if results.count(pairs[0][1]) > 1:
      continue
    # A large number that occurs nowhere else in the chain is this result.
    later = [
      i
      for i in range(at, len(right.steps))
      if re.search(pattern, right.steps[i])
    ]
    for i in later:
      checked += 1
      # A new result may equal the old number by chance, an operand may not.
      left = chain.steps[i].rpartition('=')[0]
      assert i == at or not re.search(pattern, left), chain
  assert checked > 30


@needs_package
def test_shares_of_wrong_and_repeating_chains():
  config = words.WordsConfig(repeat_share=0.2)
  chains = words.make_chains(config, 600, seed=3, samples=2)
  assert len(chains) == 1200
  assert len({c.meta['id'] for c in chains}) == 1200
  for a, b in zip(chains[::2], chains[1::2], strict=True):
    assert a.problem == b.problem == a.meta['problem_id']
  assert len({c.problem for c in chains}) == 600
  wrong = np.array([chains_lib.first_error(c.labels) >= 0 for c in chains])
  # Five standard errors of a share of 1,200 and of 600 chains.
  assert abs(wrong.mean() - 0.5) < 5 * np.sqrt(0.25 / 1200)
  repeated = [c for c in chains if c.meta['kind'] == 'repeated_step']
  share = len(repeated) / (~wrong).sum()
  assert abs(share - 0.2) < 5 * np.sqrt(0.16 / 550)
  for chain in repeated:
    neutral = [i for i, x in enumerate(chain.labels) if x.neutral]
    assert len(neutral) == 1
    assert chain.steps[neutral[0]] in chain.steps[: neutral[0]]
    assert neutral[0] < len(chain.steps) - 1
    assert {x.value for x in chain.labels} == {1.0}
    assert chain.outcome is True and false_steps(chain) == []
  for chain in chains[:100]:
    assert chains_lib.from_dict(chains_lib.to_dict(chain)) == chain
  # The template says nothing about the label: by chance chi-squared is about
  # the number of templates.
  by_template = collections.defaultdict(list)
  for chain, is_wrong in zip(chains, wrong, strict=True):
    by_template[chain.meta['template']].append(is_wrong)
  chi2 = sum(
    (sum(x) - len(x) / 2) ** 2 / (len(x) / 4) for x in by_template.values()
  )
  degrees = len(by_template)
  assert abs(chi2 - degrees) < 5 * np.sqrt(2 * degrees)


@needs_package
@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**40), group=st.sampled_from(GROUPS))
def test_chains_depend_on_the_seed_and_not_on_their_count(seed, group):
  config = words.WordsConfig(group)
  chains = words.make_chains(config, 6, seed)
  assert chains == words.make_chains(config, 6, seed)
  assert chains[:3] == words.make_chains(config, 3, seed)
  assert chains != words.make_chains(config, 6, seed + 1)
  for chain in chains:
    first = chains_lib.first_error(chain.labels)
    assert (first >= 0) == bool(chain.meta['error_steps'])
    assert chain.outcome or first >= 0


def test_the_error_for_a_missing_package_says_how_to_install_it(monkeypatch):
  for name in ('', '.arithmetic', '.arithmetic.gsm_symbolic'):
    monkeypatch.setitem(sys.modules, f'reasoning_gym{name}', None)
  word_templates._generators.cache_clear()
  word_templates.profile_template.cache_clear()
  with pytest.raises(UserError, match=r"pip install 'prm_jax\[words\]'"):
    words.make_chains(words.WordsConfig(), 1, seed=0)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'templates': 'all'}, "templates='all'"),
    ({'error_share': 1.5}, r'error_share=1\.5'),
    ({'repeat_share': 'no'}, "repeat_share='no'"),
    ({'kinds': ()}, 'kinds='),
    ({'kinds': ('typo',)}, 'typo'),
  ],
)
def test_bad_configs_are_rejected(fields, message):
  with pytest.raises(UserError, match=message):
    words.WordsConfig(**fields)


@needs_package
def test_bad_counts_and_seeds_are_rejected():
  config = words.WordsConfig()
  with pytest.raises(UserError, match='count=0'):
    words.make_chains(config, 0, 0)
  with pytest.raises(UserError, match='samples=0'):
    words.make_chains(config, 1, 0, samples=0)
  with pytest.raises(UserError, match='seed=-1'):
    words.make_chains(config, 1, -1)
