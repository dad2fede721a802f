"""Search trees on the page: every step is counted, every text escaped."""

import json

import pytest

from prm_jax import search
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.report import tree_map, trees, write_report
from prm_jax.runtime.errors import UserError
from prm_jax.search.run import Task
from prm_jax.search.tree import Node, Stream, Tree
from tests.report.workdir import parse, write


def make_tree(*nodes):
  """Makes a tree of (parent, step, score, further attributes)."""
  tree = Tree('1 + 2 + 3?')
  for number, (parent, step, score, *more) in enumerate(nodes):
    tree.add(
      Node(
        parent,
        step,
        Stream('0', number),
        score=score,
        chain_score=score,
        tokens=3,
        **(more[0] if more else {}),
      )
    )
  return tree


def small_tree():
  return make_tree(
    (0, 'one', 0.9),  # 1
    (0, 'one', 0.9),  # 2: the same step once more
    (0, 'won', 0.2),  # 3
    (1, 'two', 0.8, {'ended': True}),  # 4: chosen
    (2, 'too', 0.5, {'ended': True}),  # 5
    (2, 'tow', 0.4, {'dead': 'cut off'}),  # 6
    (3, 'tie', 0.1),  # 7
    (3, 'toy', 0.3, {'scratch': True}),  # 8
  )


def tree_record(tree, chosen, **more):
  return {
    'id': 'p1',
    'problem': tree.problem,
    'truth': '6',
    'method': 'beam',
    'tree': tree.to_dict(),
    'chosen': chosen,
  } | more


def trees_section(tmp_path, *records):
  write(tmp_path, results={})
  lines = ''.join(json.dumps(each) + '\n' for each in records)
  (tmp_path / 'trees.jsonl').write_text(lines)
  return parse(write_report(tmp_path)).by_id('trees')


def step_rows(section):
  """Returns (state, [number, score, excerpt], level) of each step."""
  return [
    (
      row.attributes['class'].split()[1],
      [span.text for span in row.all('span')[:3]],
      int(row.attributes['style'].split(';')[0].removeprefix('--l:')),
    )
    for row in section.all('li', 'node')
  ]


@pytest.mark.parametrize('method', ['best_of_n', 'beam'])
def test_the_page_shows_what_a_search_returns(tmp_path, method):
  config = ArithmeticConfig(operations=3)
  text = 'mod 10 : 7 * 3 + 4 - 2'
  (found,) = search.run(
    [Task(text, text, '3')], SolverPolicy(config), ExactScorer(config), method
  )
  about = found.chosen.meta['search']
  section = trees_section(
    tmp_path, tree_record(found.tree, about['node'], problem=text)
  )
  chosen = [
    words for state, words, _ in step_rows(section) if state == 'chosen'
  ]
  assert chosen == [
    [str(number), f'{score:.2f}', step]
    for number, (score, step) in enumerate(
      zip(about['scores'], found.chosen.steps, strict=True), 1
    )
  ]
  proposed = sum(bool(node.step) for node in found.tree.nodes)
  assert f'{proposed} steps proposed' in section.text


def test_equal_siblings_are_merged():
  steps = trees.merge_equal_steps(small_tree(), 4)
  assert [(s.text, s.count, s.size) for s in steps[1:]] == [
    ('one', 2, 4),
    ('won', 1, 3),
    ('two', 1, 1),
    ('too', 1, 1),
    ('tow', 1, 1),
    ('tie', 1, 1),
    ('toy', 1, 1),
  ]
  assert [s.text for s in steps if s.chosen] == ['one', 'two']
  assert [s.text for s in steps if s.kept] == ['', 'one', 'two', 'too']
  assert steps[0].size == 8
  assert [s.text for s in steps if s.scratch and s.text] == ['toy']


def test_the_chosen_chain_is_a_column_and_the_rest_beside_it(tmp_path):
  section = trees_section(tmp_path, tree_record(small_tree(), 4))
  assert step_rows(section) == [
    ('chosen', ['1', '0.90', 'one'], 0),
    ('pruned', ['1', '0.20', 'won'], 0),  # in a fold
    ('pruned', ['2', '0.10', 'tie'], 0),
    ('pruned', ['2', '0.30', 'toy'], 1),
    ('chosen', ['2', '0.80', 'two'], 0),
    ('kept', ['2', '0.50', 'too'], 1),
    ('pruned', ['2', '0.40', 'tow'], 1),
  ]
  (fold,) = section.all('li', 'fold')
  said = fold.all('summary')[0].text
  assert said == '1 pruned, scored 0.20, with 2 steps after'
  assert len(fold.all('li', 'node')) == 3
  first = section.all('li', 'node')[0]
  assert first.all('span', 'badge')[0].text == '×2'  # noqa: RUF001
  assert 'proposed 2 times' in first.all('p', 'meta')[0].text
  assert first.attributes['style'] == '--l:0;--s:90%'
  dead = section.all('li', 'node')[-1]
  assert dead.all('span', 'badge')[0].text == 'cut off'
  meta = section.all('p', 'meta')[0].text
  assert 'beam · answer' in meta and '8 steps proposed, 7 different' in meta


def test_the_boxes_of_the_map_link_to_the_rows(tmp_path):
  section = trees_section(tmp_path, tree_record(small_tree(), 4))
  (drawn,) = section.all('svg', 'map')
  boxes = drawn.all('a')
  # All but the two that are in the box of the pruned step before them.
  assert sorted(box.text.split()[-1] for box in boxes) == [
    '0.20',
    '0.40',
    '0.50',
    '0.80',
    '0.90',
  ]
  for box in boxes:
    row = section.by_id(box.attributes['href'].removeprefix('#'))
    assert row.all('span', 'chip')[0].text == box.all('text')[0].text
  labels = ' | '.join(box.attributes['aria-label'] for box in boxes)
  assert 'step 1, score 0.20, pruned, 2 steps after it' in labels
  assert 'step 1, score 0.90, chosen, 2 times' in labels
  assert len(drawn.all('path', 'chosen')) == 2
  assert len(drawn.all('path', 'edge')) == len(boxes)


def test_boxes_never_overlap():
  wide = make_tree(
    *[(0, f'a{i}', i / 10) for i in range(5)],
    *[(1 + i % 5, f'b{i}', i / 20, {'ended': True}) for i in range(10)],
  )
  steps = trees.merge_equal_steps(wide, 15)
  places, count = tree_map.layout(steps, set(range(len(steps))))
  assert len(set(places.values())) == len(places) == 16
  assert {row for _, row in places.values()} == set(range(count))
  for i in range(1, 16):
    column, row = places[i]
    assert column == places[steps[i].parent][0] + 1
    assert row >= places[steps[i].parent][1]


def test_of_a_large_tree_the_most_promising_steps_are_shown(tmp_path):
  nodes = [(0, f's{i}', i / 4000) for i in range(3000)]
  nodes += [(1 + i, f't{i}', 0.5, {'ended': True}) for i in range(10)]
  section = trees_section(tmp_path, tree_record(make_tree(*nodes), 3001))
  shown = step_rows(section)
  assert len(shown) == trees.MAX_STEPS
  texts = {words[2] for _, words, _ in shown}
  assert {'s0', 't0', 't9', 's2999'} <= texts and 's20' not in texts
  hidden = 3010 - trees.MAX_STEPS
  assert f'{hidden:,} of the least promising not shown' in section.text
  (more,) = section.all('li', 'more')
  assert more.text == f'{hidden:,} more, not shown'
  assert f'leaves out {3010 - trees.MAX_MAPPED:,} of' in section.text
  assert (tmp_path / 'report.html').stat().st_size < 600_000


@pytest.mark.slow
def test_rows_of_a_deep_tree_are_not_nested(tmp_path):
  nodes = [(i, f's{i}', 0.5) for i in range(2000)]
  section = trees_section(tmp_path, tree_record(make_tree(*nodes), 2000))
  assert len(step_rows(section)) == 2000  # the chosen chain is always whole
  assert {level for _, _, level in step_rows(section)} == {0}
  assert 'the chosen chain did not end' in section.text


def test_a_step_without_a_score_has_no_colour(tmp_path):
  tree = make_tree((0, 'one', None), (1, '', None, {'ended': True}))
  section = trees_section(tmp_path, tree_record(tree, 2))
  (row,) = section.all('li', 'node')
  assert row.attributes['style'] == '--l:0'
  assert row.all('span', 'chip')[0].text == '–'  # noqa: RUF001
  assert row.all('span', 'badge')[0].text == 'end'
  assert 'style' not in section.all('svg')[0].all('a')[0].attributes


def test_a_chain_that_was_rolled_out_may_be_the_chosen_one(tmp_path):
  tree = make_tree(
    (0, 'one', 0.5, {'visits': 3, 'value': 0.25}),
    (0, 'one', 0.5, {'visits': 1, 'value': 0.75}),
    (1, 'two', 0.5, {'scratch': True, 'ended': True}),
    (1, 'too', 0.4, {'scratch': True, 'ended': True}),
  )
  section = trees_section(tmp_path, tree_record(tree, 3))
  first, chosen, other = section.all('li', 'node')
  assert 'chosen' in chosen.attributes['class']
  assert chosen.all('span', 'badge')[0].text == 'end'
  assert 'pruned' in other.attributes['class']
  assert not other.all('span', 'badge')
  # (3 * 0.25 + 0.75) / 4
  assert '4 visits of mean value 0.375' in first.all('p', 'meta')[0].text


def test_texts_of_a_model_are_escaped(tmp_path):
  evil = '</p></details><script>alert(1)</script>" onclick="x() & \ud800'
  tree = make_tree((0, evil, 0.5, {'dead': evil}), (0, 'b', 0.5))
  tree.problem = evil
  section = trees_section(
    tmp_path, tree_record(tree, 2, id=evil, truth=evil, method=f'a {evil}')
  )
  assert not section.all('script')
  texts = [p.text for p in section.all('p', 'words')]
  assert texts.count(evil.replace('\ud800', '?')) == 2  # problem and step
  handlers = [
    name
    for tag in ('li', 'p', 'b', 'span', 'a', 'summary', 'details', 'svg')
    for node in section.all(tag)
    for name in node.attributes
    if name.startswith('on')
  ]
  assert not handlers


def test_trees_beyond_the_limit_are_counted_and_ids_are_distinct(tmp_path):
  count = trees.MAX_TREES + 3
  section = trees_section(tmp_path, *[tree_record(small_tree(), 4)] * count)
  assert f'The first {trees.MAX_TREES} of {count} trees' in section.text
  ids = [row.attributes['id'] for row in section.all('li', 'node')]
  assert len(ids) == len(set(ids)) == 7 * trees.MAX_TREES
  opened = [p for p in section.all('details', 'problem')]
  assert ['open' in p.attributes for p in opened] == [True] + [False] * (
    trees.MAX_TREES - 1
  )


def test_same_input_same_bytes(tmp_path):
  trees_section(tmp_path, tree_record(small_tree(), 4))
  first = (tmp_path / 'report.html').read_bytes()
  write_report(tmp_path)
  assert (tmp_path / 'report.html').read_bytes() == first


@pytest.mark.parametrize(
  'broken',
  [
    lambda r: r.pop('tree'),
    lambda r: r.update(chosen=99),
    lambda r: r.update(method=None),
    lambda r: r['tree'].update(nodes=[]),
    lambda r: r['tree']['nodes'][2].update(parent=7),
    lambda r: r['tree']['nodes'][2].update(score='high'),
    lambda r: r['tree']['nodes'][2].update(score=float('nan')),
    lambda r: r['tree']['nodes'][2].update(step=['x']),
    lambda r: r['tree']['nodes'][2].update(colour='red'),
  ],
)
def test_a_malformed_tree_is_one_line_that_names_it(tmp_path, broken):
  bad = tree_record(small_tree(), 4)
  broken(bad)
  with pytest.raises(UserError, match=r'trees\.jsonl:2: not a search tree'):
    trees_section(tmp_path, tree_record(small_tree(), 4), bad)


@pytest.mark.parametrize(
  ('name', 'found'),
  [('tokens', None), ('tokens', 'x'), ('visits', []), ('value', {})],
)
def test_a_node_of_other_values_names_the_line(tmp_path, name, found):
  record = tree_record(small_tree(), 4)
  record['tree']['nodes'][1][name] = found
  path = tmp_path / 'trees.jsonl'
  path.write_text(json.dumps(record))
  with pytest.raises(UserError, match=r'trees\.jsonl:1: not a search tree'):
    trees.read_trees(path)


def test_a_tree_whose_problem_is_no_text_names_the_line(tmp_path):
  record = tree_record(small_tree(), 4)
  record['tree']['problem'] = 0.5
  path = tmp_path / 'trees.jsonl'
  path.write_text(json.dumps(record))
  with pytest.raises(UserError, match=r'trees\.jsonl:1: not a search tree'):
    trees.read_trees(path)
