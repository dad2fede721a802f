"""Writes the pages of the site: this repository's texts, and its docstrings.

`mkdocs build` runs this. Nothing is written twice: README.md is the first page,
the files of docs/ and each experiment's README are pages as they are, and every
public module has a page made of its docstrings. Links between files of the
repository become links between pages, and pictures are copied.
"""

import pathlib
import re

import mkdocs_gen_files

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r'\[([^\[\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]+)?\)')
# The pages by task, in the order of the pipeline.
GUIDE = (
  'data',
  'training',
  'policies',
  'labels',
  'scoring',
  'search',
  'rl',
  'evaluation',
  'critics',
  'serving',
  'hardware',
  'cloud',
  'trl',
  'comparison',
)


def module_page(path: pathlib.Path) -> str:
  """Returns where a module's page lies: prm_jax/rl/loop.py -> reference/..."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  parts = parts[:-1] if parts[-1] == '__init__' else parts
  return f'reference/{".".join(parts)}.md'


def page_of(target: pathlib.Path) -> str | None:
  """Returns the page or file of the site that shows a file; None: none does."""
  if target.is_dir():
    target = target / 'README.md'
  if not target.is_file():
    return None
  relative = target.relative_to(ROOT)
  if relative.suffix == '.py':
    own = relative.parts[0] == 'prm_jax'
    return module_page(target) if own else f'{relative}.md'
  if relative.parts[0] == 'docs':
    return str(relative.relative_to('docs'))
  return 'index.md' if str(relative) == 'README.md' else str(relative)


def copy_text(path: pathlib.Path, page: str) -> None:
  """Writes a Markdown file as a page, with links to other pages."""

  def rewrite(link: re.Match) -> str:
    words, target = link[1], (path.parent / link[2]).resolve()
    shown = page_of(target)
    if shown is None:
      return words  # the site has no such page, so the words stand alone
    if target.suffix not in ('', '.md', '.py'):
      with mkdocs_gen_files.open(shown, 'wb') as file:
        file.write(target.read_bytes())
    up = '../' * page.count('/')
    return f'[{words}]({up}{shown}{link[3] or ""})'

  text = LINK.sub(rewrite, path.read_text())
  with mkdocs_gen_files.open(page, 'w') as file:
    file.write(text)


def title_of(path: pathlib.Path) -> str:
  """Returns the heading in the first line of a Markdown file."""
  return path.read_text().split('\n', 1)[0].removeprefix('# ')


def main() -> None:
  nav = ['* [Start](index.md)', '* Guide']
  copy_text(ROOT / 'README.md', 'index.md')
  for name in GUIDE:
    path = ROOT / f'docs/{name}.md'
    copy_text(path, path.name)
    nav.append(f'    * [{title_of(path)}]({path.name})')
  nav += ['* Experiments', '    * [What holds](experiments/README.md)']
  for path in sorted((ROOT / 'experiments').rglob('*.md')):
    page = str(path.relative_to(ROOT))
    copy_text(path, page)
    if path != ROOT / 'experiments/README.md':
      nav.append(f'    * [{title_of(path)}]({page})')
  nav.append('* Reference')
  for path in sorted((ROOT / 'prm_jax').rglob('*.py')):
    if path.name == '__main__.py':
      continue
    page = module_page(path)
    name = pathlib.Path(page).stem
    with mkdocs_gen_files.open(page, 'w') as file:
      file.write(f'::: {name}\n')
    nav.append(f'    * [{name}]({page})')
  nav.append('* Configs')
  for path in sorted((ROOT / 'configs').glob('*.py')):
    page = f'configs/{path.name}.md'
    with mkdocs_gen_files.open(page, 'w') as file:
      file.write(f'# {path.name}\n\n```python\n{path.read_text()}```\n')
    nav.append(f'    * [{path.name}]({page})')
  for name in ('CHANGELOG', 'CONTRIBUTING'):
    copy_text(ROOT / f'{name}.md', f'{name}.md')
    nav.append(f'* [{name.capitalize()}]({name}.md)')
  with mkdocs_gen_files.open('SUMMARY.md', 'w') as file:
    file.write('\n'.join(nav) + '\n')


main()
