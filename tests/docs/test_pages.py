"""What README.md and docs/ say agrees with the code and the results."""

import importlib.util
import itertools
import json
import re

import pytest

from prm_jax.data.readers import READERS
from prm_jax.inference.published import STYLES
from prm_jax.jobs.label import SOURCES
from prm_jax.jobs.settings.items import SELECTIONS
from prm_jax.models.hub.architectures import LAYOUTS
from prm_jax.rl.rewards import FORMS
from prm_jax.search.methods import METHODS
from tests.shared.command_line import ROOT

README = ROOT / 'README.md'
CONFIGS = sorted((ROOT / 'configs').glob('*_math.py'))
DOCS = sorted((ROOT / 'docs').glob('*.md'))
PAGES = (README, ROOT / 'CONTRIBUTING.md', ROOT / 'CHANGELOG.md', *DOCS)
LINK = re.compile(r'\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)')
# A key of a config in the text: `optim.lr`, `--config.optim.lr=1e-4`.
KEY = re.compile(r'`(?:--config\.)?([a-z]\w*(?:\.\w+)+)(?:=[^`]*)?`')
FILES = ('jsonl', 'json', 'html', 'py')


def anchors(path):
  """The anchors of a page's headings, as GitHub and the site make them."""
  headings = re.findall(r'^#+ (.*)$', path.read_text(), re.MULTILINE)
  plain = (re.sub(r'[^\w\- ]', '', heading.lower()) for heading in headings)
  return {heading.replace(' ', '-') for heading in plain}


def load_config(path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def config_keys():
  """Dotted names of every value of every config, and of their sections."""
  found = set()

  def walk(value, name):
    found.add(name)
    if isinstance(value, dict):
      for key, inner in value.items():
        walk(inner, f'{name}.{key}')

  for path in CONFIGS:
    # Other kinds of data have other keys.
    variants = ['', 'human', 'words'] if path.stem == 'prm_math' else ['']
    for variant in variants:
      config = load_config(path).get_config(variant).to_dict()
      for name, value in config.items():
        walk(value, name)
  return found


def test_readme_is_read_in_ten_minutes():
  assert len(README.read_text().splitlines()) <= 200
  changes = (ROOT / 'CHANGELOG.md').read_text().splitlines()
  assert len(changes) <= 40


def test_links_lead_to_files_and_headings():
  for page in PAGES:
    for path, anchor in LINK.findall(page.read_text()):
      target = (page.parent / path) if path else page
      assert target.exists(), f'{page.name}: {path}'
      assert not anchor or anchor in anchors(target), f'{page.name}: #{anchor}'


def test_readme_leads_to_every_page_and_notebook():
  linked = {path for path, _ in LINK.findall(README.read_text())}
  assert {str(path.relative_to(ROOT)) for path in DOCS} <= linked
  notebooks = (ROOT / 'colab').glob('*.ipynb')
  assert {str(path.relative_to(ROOT)) for path in notebooks} <= linked


def test_readme_has_every_job_and_room():
  text = README.read_text()
  jobs = {load_config(path).get_config().task for path in CONFIGS}
  assert jobs == set(re.findall(r'^\| `(\w+)` \|', text, re.MULTILINE))
  rooms = {path.parent.name for path in ROOT.glob('prm_jax/*/__init__.py')}
  contributing = (ROOT / 'CONTRIBUTING.md').read_text()
  for room in rooms:
    assert f'`{room}/`' in text
    assert f'`{room}/`' in contributing


@pytest.mark.parametrize(
  ('page', 'names'),
  [
    ('data', READERS),
    ('labels', [*SOURCES, *SELECTIONS]),
    ('scoring', STYLES),
    ('search', METHODS),
    ('rl', FORMS),
    ('training', LAYOUTS),
  ],
)
def test_a_page_names_every_choice(page, names):
  text = (ROOT / f'docs/{page}.md').read_text()
  # Chains that bring their own labels have no source to choose.
  assert {name for name in names if f'`{name}`' not in text} <= {'given'}


def test_keys_in_the_text_are_keys_of_a_config():
  known = config_keys()
  sections = {key.split('.')[0] for key in known}
  for page in (README, *DOCS):
    for key in KEY.findall(page.read_text()):
      first, *_, last = key.split('.')
      if first in sections and last not in FILES:
        assert key in known, f'{page.name}: {key}'


def numbers(line):
  """The name and the numbers of a line of the console's table."""
  name, *values = line.split()
  return name, [float(value) for value in values]


def test_what_the_first_command_prints():
  """The table of README.md is that of experiments/prm_vs_orm."""
  (block,) = re.findall(r'```text\n(.*?)```', README.read_text(), re.DOTALL)
  path = ROOT / 'experiments/prm_vs_orm/results.json'
  results = json.loads(path.read_text())['first_command']['results']
  curves = results['best_of_n']
  table, where = block.strip().split('\n\n')
  head, *lines = table.splitlines()
  assert [int(n) for n in head.split()[3:]] == curves['n']
  shown = dict(numbers(line) for line in lines)
  assert shown == {
    name: [round(100 * mean, 1) for mean in curve['mean']]
    for name, curve in curves.items()
    if name != 'n'
  }
  found = results['localisation']['arithmetic']
  trivial = max(each['f1'] for each in found['baselines'].values())
  values = [found['f1'], found['acc_error'], found['acc_correct'], trivial]
  said = re.findall(r'\d+\.\d', where.splitlines()[1])
  assert [float(each) for each in said] == [
    round(100 * value, 1) for value in values
  ]


def cells(line):
  return [cell.strip() for cell in line.strip('|').split('|')]


def test_claims_are_those_of_the_experiments():
  """A claim's wording is README's own; numbers and verdict are not."""
  table = (ROOT / 'experiments/README.md').read_text()
  known = {
    (row[0].split(']')[0], row[3], *row[5:])
    for row in map(cells, table.splitlines())
    if len(row) == 7
  }
  rows = [
    cells(line)
    for line in README.read_text().splitlines()
    if line.startswith('| [') and len(cells(line)) == 5
  ]
  assert len(rows) == 7
  for folder, _, here, interval, verdict in rows:
    assert (folder.split(']')[0], here, interval, verdict) in known


def test_public_names_are_one_level_deep():
  """What README's snippets import is what the package hands out."""
  pattern = re.compile(r'^from prm_jax import (.*)$', re.MULTILINE)
  text = '\n'.join(path.read_text() for path in (README, *DOCS))
  names = itertools.chain(*(each.split(', ') for each in pattern.findall(text)))
  public = importlib.import_module('prm_jax')
  for name in {*names, *re.findall(r'prm_jax\.([a-zA-Z]\w*)\(', text)}:
    if name not in {'rl', 'search'}:
      assert name in public.__all__, name
    else:
      assert importlib.import_module(f'prm_jax.{name}') is getattr(public, name)
