"""Writes small workdirs to report on, and parses the page."""

import copy
import html.parser
import json

from prm_jax.data import chains

VOID = {'meta', 'link', 'br', 'img', 'input', 'hr'}
MEAN = {
  'prm_min': [0.41, 0.634, 0.8552],
  'prm_mean': [0.41, 0.6, 0.7],
  'orm': [0.41, 0.55, 0.8],
  'majority': [0.41, 0.45, 0.475],
  'random': [0.41, 0.41, 0.41],
  'oracle': [0.41, 0.7, 0.97],
}
DOCUMENT = {
  'manifest': {
    'name': 'A & B <i>run</i>',
    'versions': {'jax': '0.10.2'},
    'seeds': {'data': 0},
    'threshold': {'value': 0.4, 'source': 'dev set'},
    'command': 'python -m prm_jax.main --config c.py --workdir "$W" && ls',
    'wall_seconds': 3725.0,
  },
  'results': {
    'best_of_n': {'n': [1, 4, 64], 'problems': 400}
    | {
      name: {'mean': mean, 'ci95': [[m - 0.03, m + 0.02] for m in mean]}
      for name, mean in MEAN.items()
    },
    'localisation': {
      'gsm8k': {
        'f1': 0.313,
        'acc_error': 0.22,
        'acc_correct': 0.54,
        'threshold': 0.4,
        'ci95': [0.26, 0.366],
        'by_position': [
          {
            'step': 1,
            'and_later': False,
            'right_kept': 90,
            'right_flagged': 10,
            'wrong_kept': 3,
            'wrong_flagged': 1,
          },
          {
            'step': 2,
            'and_later': True,
            'right_kept': 1500,
            'right_flagged': 0,
            'wrong_kept': 0,
            'wrong_flagged': 0,
          },
        ],
        'baselines': {
          'random_step': {'f1': 0.19, 'acc_error': 0.15, 'acc_correct': 0.26},
          'never_wrong': {'f1': 0.0, 'acc_error': 0.0, 'acc_correct': 1.0},
        },
      },
    },
    'calibration': {
      'gsm8k': {
        'ece': 0.0312,
        'step_auroc': 0.94,
        'reliability': {
          'score': [0.1, None, 0.9],
          'accuracy': [0.2, None, 0.85],
          'count': [40, 0, 1200],
        },
      },
    },
    'diagnostics': {'min_is_last': 0.25, 'nested': {'deep': None}},
    'speed': 1234.5,
  },
}


class Node:
  """An element of the parsed page: tag, attributes, children, text."""

  def __init__(self, tag, attributes, parent):
    self.tag, self.attributes, self.parent = tag, dict(attributes), parent
    self.children, self.words = [], []

  @property
  def text(self):
    return ' '.join(' '.join(self.words).split())

  def all(self, tag, class_=None):
    return [
      node
      for child in self.children
      for node in ([child] if child.matches(tag, class_) else [])
      + child.all(tag, class_)
    ]

  def matches(self, tag, class_):
    classes = self.attributes.get('class', '').split()
    return self.tag == tag and (class_ is None or class_ in classes)

  def by_id(self, name):
    for child in self.children:
      found = child if child.attributes.get('id') == name else child.by_id(name)
      if found:
        return found
    return None


class Parser(html.parser.HTMLParser):
  def __init__(self):
    super().__init__()
    self.root = self.here = Node('root', (), None)

  def handle_starttag(self, tag, attrs):
    node = Node(tag, attrs, self.here)
    self.here.children.append(node)
    if tag not in VOID:
      self.here = node

  def handle_startendtag(self, tag, attrs):
    self.here.children.append(Node(tag, attrs, self.here))

  def handle_endtag(self, tag):
    assert tag == self.here.tag, f'{tag} closes {self.here.tag}'
    self.here = self.here.parent

  def handle_data(self, data):
    node = self.here
    while node:
      node.words.append(data)
      node = node.parent


def parse(path):
  parser = Parser()
  parser.feed(path.read_text(encoding='utf-8'))
  assert parser.here is parser.root  # everything that opens is closed
  return parser.root


def table(node):
  return [
    [cell.text for cell in row.children if cell.tag in ('th', 'td')]
    for row in node.all('tr')
  ]


def write(workdir, results=None, records=(), metrics=None, manifest=None):
  document = copy.deepcopy(DOCUMENT)
  if results is not None:
    document['results'] = results
  document['manifest'].update(manifest or {})
  (workdir / 'results.json').write_text(json.dumps(document))
  if records:
    lines = ''.join(json.dumps(record) + '\n' for record in records)
    (workdir / 'chains.jsonl').write_text(lines)
  for folder, rows in (metrics or {}).items():
    (workdir / folder).mkdir(exist_ok=True)
    lines = ''.join(json.dumps(row) + '\n' for row in rows)
    (workdir / folder / 'metrics.jsonl').write_text(lines)
  return workdir


def record(values=(1.0, 0.0, 0.0), scores=(0.9, 0.6, 0.2), **extra):
  chain = chains.Chain(
    extra.pop('problem', 'How many?'),
    tuple(extra.pop('steps', ('one', 'two', 'three'))),
    answer=extra.pop('answer', '7'),
    outcome=extra.pop('outcome', False),
    labels=tuple(chains.StepLabel(value) for value in values),
    meta={'id': 'x1', 'dataset': 'toy'},
  )
  return chains.to_dict(chain) | {'scores': list(scores)} | extra


def losses(count, base):
  return [{'step': t, 'loss': base + 1 / (t + 1)} for t in range(count)]
