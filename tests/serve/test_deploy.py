"""The files of deploy/ name what there is."""

import re
import tomllib

from tests.shared.command_line import ROOT

DEPLOY = ROOT / 'deploy'


def test_the_image_copies_what_there_is():
  text = (DEPLOY / 'Dockerfile').read_text()
  copied = re.findall(r'^COPY (.+) \S+$', text, re.MULTILINE)
  assert copied
  for names in copied:
    for name in names.split():
      assert (ROOT / name).exists(), name


def test_the_lock_has_a_version_and_hashes_of_every_package():
  text = (DEPLOY / 'requirements.txt').read_text().replace('\\\n', '')
  pins = [line for line in text.splitlines() if not line.startswith('#')]
  pin = re.compile(
    r'([\w.-]+)==[\w.]+( ;[^#]+)?(\s+--hash=sha256:[0-9a-f]{64})+'
  )
  locked = {pin.fullmatch(line.strip())[1].lower() for line in pins}
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  wanted = project['dependencies'] + project['optional-dependencies']['serve']
  for line in wanted:
    name = re.match(r'[\w-]+', line)[0].lower()
    assert name.replace('_', '-') in locked, line
