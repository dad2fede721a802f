"""Files as other people give them: a pointer of Git LFS in place of a file."""

import pathlib

import pytest

from prm_jax.data.contamination import read_evaluation_problems
from prm_jax.data.readers import read_chains
from prm_jax.data.tokenizer import read_tokenizer
from prm_jax.models.hub.chat_template import read_chat_template
from prm_jax.models.hub.gguf_container import open_file
from prm_jax.models.hub.safetensors_files import TensorFiles, read_json
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

POINTER = (
  'version https://git-lfs.github.com/spec/v1\n'
  f'oid sha256:{"4d7a" * 16}\n'
  'size 12345\n'
)
# File -> what opens it.
OPENERS = {
  'train.jsonl': lambda path: read_chains(path, 'chains'),
  'known.jsonl': read_evaluation_problems,
  'model.safetensors': lambda path: TensorFiles(path.parent),
  'model.gguf': open_file,
  'tokenizer.json': lambda path: read_tokenizer(path.parent),
  'config.json': read_json,
  'chat_template.jinja': lambda path: read_chat_template(path.parent),
}


@pytest.mark.parametrize('name', OPENERS)
def test_a_pointer_of_git_lfs(tmp_path: pathlib.Path, name):
  if name.endswith('gguf'):
    pytest.importorskip('gguf', reason='gguf is not installed')
  path = tmp_path / name
  path.write_text(POINTER)
  with pytest.raises(UserError) as error:
    OPENERS[name](path)
  assert str(error.value) == (
    f'{path} is a Git LFS pointer and not the file itself; run `git lfs pull` '
    f'in {tmp_path}'
  )


def test_text_is_read_as_before(tmp_path):
  (tmp_path / 'a').write_bytes('\ufeffversion\r\nä'.encode())
  assert paths.read_text(tmp_path / 'a') == '\ufeffversion\nä'


@pytest.mark.parametrize('end', ['', '\n'])
def test_lines_end_with_a_newline_only(tmp_path, end):
  (tmp_path / 'a').write_text('a\u2028b\x85c\x0b\n\nd' + end, encoding='utf-8')
  lines = [line.decode() for line in paths.read_lines(tmp_path / 'a')]
  assert lines == ['a\u2028b\x85c\x0b', '', 'd']
  (tmp_path / 'a').write_text('')
  assert paths.read_lines(tmp_path / 'a') == []


@pytest.mark.parametrize('name', ['~nobody-of-this-name/run', 'a\udcffb'])
def test_a_path_that_cannot_be_opened_is_one_line(name):
  with pytest.raises(UserError, match='expected the path of a folder') as error:
    paths.open_path(name)
  assert str(error.value).isascii() and '\n' not in str(error.value)
