"""The search tree: its paths, its order and its JSON form."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.search.tree import ROOT, Node, Stream, Tree

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def trees(draw):
  tree = Tree(draw(st.text()))
  tree.nodes[ROOT].drawn = draw(st.integers(0, 9))
  for size in range(draw(st.integers(0, 12))):
    tree.add(
      Node(
        parent=draw(st.integers(0, size)),
        step=draw(st.sampled_from(['', 'a', 'so x = 1', 'é\n"'])),
        stream=draw(
          st.none() | st.builds(Stream, st.text(), st.integers(0, 99))
        ),
        ended=draw(st.booleans()),
        dead=draw(st.sampled_from(['', 'cut off'])),
        scratch=draw(st.booleans()),
        score=draw(st.none() | st.floats(0, 1)),
        chain_score=draw(st.none() | NUMBERS),
        tokens=draw(st.integers(0, 99)),
        logprob=draw(st.none() | NUMBERS),
        drawn=draw(st.integers(0, 9)),
        ahead=draw(st.integers(0, 9)),
        visits=draw(st.integers(0, 9)),
        value=draw(NUMBERS),
      )
    )
  return tree


@given(trees())
def test_a_tree_survives_json(tree):
  text = json.dumps(tree.to_dict(), allow_nan=False)
  again = Tree.from_dict(json.loads(text))
  assert again.problem == tree.problem
  assert again.nodes == tree.nodes
  assert again.children == tree.children
  assert all(
    node.stream is None or isinstance(node.stream, Stream)
    for node in again.nodes
  )
  # It is a copy: adding to one leaves the other as it was.
  again.add(Node(ROOT, 'more'))
  assert len(again.nodes) == len(tree.nodes) + 1


@pytest.mark.parametrize(
  'spoilt',
  [
    {'step': 5},
    {'dead': None},
    {'parent': -1},
    {'parent': 1},
    {'parent': '0'},
    {'score': 'high'},
    {'score': math.nan},
    {'chain_score': True},
    {'chain_score': -math.inf},
    {'score': 10**400},
    {'drawn': 1.5},
    {'ahead': 1.5},
    {'last': '1'},
    {'visits': True},
    {'tokens': 'x'},
    {'depth': None},
    {'value': 'x'},
    {'value': None},
    {'value': math.inf},
    {'logprob': 'x'},
    {'ended': 'no'},
    {'scratch': 3},
    {'stream': ['a', 'b']},
    {'stream': [0, 1]},
    {'stream': ['a']},
    {'stream': 'a1'},
    {'stream': []},
    {'unknown': 1},
  ],
)
def test_what_is_no_tree_is_refused(spoilt):
  nodes = [{'parent': -1}, {'parent': 0, 'step': 'a', 'score': 0.5}]
  assert Tree.from_dict({'problem': 'p', 'nodes': nodes}).nodes[1].step == 'a'
  with pytest.raises((TypeError, ValueError)):
    Tree.from_dict({'problem': 'p', 'nodes': [nodes[0], nodes[1] | spoilt]})


def test_a_tree_without_the_text_of_a_problem_is_refused():
  with pytest.raises(TypeError):
    Tree.from_dict({'problem': 5, 'nodes': [{'parent': -1}]})


@given(trees())
def test_order_and_paths(tree):
  order = list(tree.in_order())
  assert sorted(order) == list(range(len(tree.nodes))) and order[0] == ROOT
  place = {i: n for n, i in enumerate(order)}
  for i, node in enumerate(tree.nodes):
    assert tree.children[i] == sorted(tree.children[i], key=place.get)
    if i == ROOT:
      continue
    assert place[node.parent] < place[i]
    assert node.depth == len(tree.path(i)) == len(tree.steps(i))
    path = tree.path(node.parent)
    assert tree.path(i) == ([*path, i] if node.step else path)
  # Nothing of a subtree stands after its next sibling.
  for siblings in tree.children:
    for left, right in itertools.pairwise(siblings):
      under = [i for i in order if left in _ancestors(tree, i)]
      assert max(place[i] for i in under) < place[right]


def _ancestors(tree, index):
  """The nodes from one up to the root, itself included."""
  line = [index]
  while line[-1] != ROOT:
    line.append(tree.nodes[line[-1]].parent)
  return line


def test_which_nodes_are_alive_and_which_ended():
  tree = Tree('p')
  first = tree.add(Node(ROOT, 'a'))
  tree.add(Node(ROOT, 'b', dead='cut off', ended=True))
  third = tree.add(Node(ROOT, 'c', ended=True))
  end = tree.add(Node(first, '', ended=True))
  looked = tree.add(Node(third, 'd', scratch=True, ended=True))
  assert tree.alive() == [first, end, third]
  assert tree.ended() == [end, third]
  assert tree.ended(scratch=True) == [looked]
  assert tree.live_children(ROOT) == [first, third]
  assert tree.live_children(third) == []
  assert tree.steps(end) == ('a',) and tree.scores(end) == [None]
  leaf = tree.add(Node(first, 'e'))
  cut_off = tree.add(Node(leaf, 'f'))
  tree.add(Node(cut_off, 'g', dead='cut off'))
  assert tree.ends() == [end, third]
  other_leaf = tree.add(Node(first, 'h'))
  assert tree.ends() == [end, other_leaf, third]


def test_defaults_are_left_out_of_the_json():
  tree = Tree('p')
  tree.add(Node(ROOT, 'a', Stream('k', 3), score=0.5))
  assert tree.to_dict()['nodes'] == [
    {'parent': -1},
    {'parent': 0, 'step': 'a', 'stream': ['k', 3], 'score': 0.5, 'depth': 1},
  ]
