"""Chat templates: rendered as by transformers, and cut at the marks."""

import signal

import pytest

from prm_jax.models.hub import chat_template
from prm_jax.models.hub.chat_template import chat_renderer, cut, special_tokens
from prm_jax.runtime.errors import UserError
from tests.shared.published_models import LLAMA3, write_json

TURNS = [('user', 'Q'), ('assistant', 'A')]


def folder_with(folder, template, **settings):
  (folder / 'chat_template.jinja').write_text(template)
  write_json(folder / 'tokenizer_config.json', settings)
  return folder


def test_blocks_leave_no_blanks_or_lines(tmp_path):
  template = (
    '{% for m in messages %}\n'
    '  {% if m.role %}\n'
    '[{{ m.role }}] {{ m.content }}\n'
    '  {% endif %}\n'
    '{% endfor %}\n'
  )
  render = chat_renderer(folder_with(tmp_path, template))
  assert render(TURNS) == '[user] Q\n[assistant] A\n'


def test_variables_of_templates(tmp_path):
  template = (
    '{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|'
    '{{ documents is none }}|{{ add_generation_prompt }}|'
    "{{ strftime_now('%d %b %Y') }}|{{ pad_token is defined }}"
    '{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}'
    '{{ m.content }}{% endfor %}'
  )
  tokens = {'bos_token': {'content': '<s>'}, 'eos_token': '</s>'}
  folder = folder_with(tmp_path, template, pad_token=None, **tokens)
  assert special_tokens(folder) == {'bos_token': '<s>', 'eos_token': '</s>'}
  # The same on every day: else a job that goes on would ask otherwise.
  assert chat_renderer(folder)(TURNS) == (
    '<s>|</s>|True|True|False|26 Jul 2024|FalseQ'
  )


def test_llama3_by_hand(tmp_path):
  folder = folder_with(tmp_path, LLAMA3, bos_token='<|begin_of_text|>')
  assert chat_renderer(folder)([('user', ' Q '), ('assistant', '+')]) == (
    '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n'
    'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n'
    '<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>'
    '<|start_header_id|>assistant<|end_header_id|>\n\n+<|eot_id|>'
  )


def test_the_default_of_several_templates(tmp_path):
  templates = [
    {'name': 'tool_use', 'template': 'tools'},
    {'name': 'default', 'template': 'plain'},
  ]
  write_json(tmp_path / 'tokenizer_config.json', {'chat_template': templates})
  assert chat_renderer(tmp_path)(TURNS) == 'plain'


def test_a_template_cannot_leave_its_sandbox(tmp_path):
  template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
  render = chat_renderer(folder_with(tmp_path, template))
  with pytest.raises(UserError, match='cannot be used'):
    render(TURNS)


def test_cut(tmp_path):
  assert cut('a1b2c', '12', tmp_path) == ['a', 'b', 'c']
  assert cut('12', '12', tmp_path) == ['', '', '']
  for text in ('a1b', 'a2b1', '1212', ''):
    with pytest.raises(UserError, match='exactly once, in order'):
      cut(text, '12', tmp_path)


def test_a_signal_to_stop_is_for_the_program_that_asks(tmp_path):
  """It may have requests to answer yet."""
  render = chat_renderer(folder_with(tmp_path, '{{ messages|length }}'))
  assert render(TURNS) == '2'
  for number in (signal.SIGINT, signal.SIGTERM):
    chat_template._RENDERING._process.send_signal(number)
    assert render(TURNS) == '2'


@pytest.mark.slow
@pytest.mark.parametrize(
  'template',
  [
    '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}'
    '{% endfor %}',
    '{{ 10 ** (10 ** 9) }}',
  ],
)
def test_a_template_that_never_ends_is_ended(tmp_path, template):
  render = chat_renderer(folder_with(tmp_path, template))
  with pytest.raises(UserError, match='it needs more than 5 s or 512 MiB'):
    render(TURNS)
  (tmp_path / 'chat_template.jinja').write_text('{{ messages|length }}')
  assert chat_renderer(tmp_path)(TURNS) == '2'


@pytest.mark.parametrize(
  ('template', 'why'),
  [
    ("{{ 'a' * 10 ** 10 }}", 'MemoryError'),
    ("{{ 'a' * 10 ** 7 }}", 'it writes 10,000,000 characters'),
    ('{{ raise_exception("two\nlines") }}', 'two lines'),
  ],
)
def test_a_template_that_writes_too_much_is_refused(tmp_path, template, why):
  render = chat_renderer(folder_with(tmp_path, template))
  with pytest.raises(UserError, match=rf'cannot be used \({why}\)') as error:
    render(TURNS)
  assert '\n' not in str(error.value)


def test_what_transformers_adds_to_templates(tmp_path):
  """A tag around what a model writes, and JSON as it is."""
  template = '{% generation %}{{ messages[0].content | tojson }}'
  template += '{% endgeneration %}'
  (tmp_path / 'chat_template.jinja').write_text(template)
  assert chat_renderer(tmp_path)([('user', 'é<b>')]) == '"é<b>"'


def test_special_tokens_that_the_config_leaves_out_are_in_the_map(tmp_path):
  write_json(
    tmp_path / 'special_tokens_map.json',
    {'bos_token': {'content': '<s>'}, 'eos_token': '</s>'},
  )
  write_json(tmp_path / 'tokenizer_config.json', {'eos_token': '<end>'})
  assert special_tokens(tmp_path) == {'bos_token': '<s>', 'eos_token': '<end>'}
