"""Imitates servers whose model writes steps and which honour `stop`.

Real servers differ in how they tell what ended a text: some have a field for
it, some leave the stop in the text, and some do not tell.
"""

import re

from tests.shared.faulty_server import USAGE

# vLLM, SGLang, TGI and `transformers serve` tell that a text ended at a stop;
# OpenAI and llama.cpp do not; deaf servers ignore `stop`.
STYLES = ('vllm', 'sglang', 'tgi', 'transformers', 'openai', 'deaf')
DEPTH = 5


def step(n, seed):
  """Returns step n for a seed; the last step states an answer."""
  number = seed % 7
  if n == DEPTH - 1:
    return f'#### {number}'
  return f'{n}: we take {number} and go on to what comes after it'


def rest_of_chain(written, seed, gap='\n'):
  """Returns what the model writes after the text shown, up to its end."""
  lines = [line for line in written.split('\n') if line]
  if lines and not written.endswith('\n'):
    text = gap if len(lines) < DEPTH else ''
  else:
    shown = len(written) - len(written.rstrip('\n'))
    text = '\n' * max(0, len(gap) - shown) if lines else ''
    text = text if len(lines) < DEPTH else ''
  return text + gap.join(step(n, seed) for n in range(len(lines), DEPTH))


def tokens_of(text):
  """Splits a text into words and line ends."""
  return re.findall(r'\n|[^\n ]+ ?|[ ]', text)


def answer(style, gap='\n', trims=False):
  """Returns a `FaultyServer.fault` that answers in the style of a server.

  Args:
    style: one of STYLES.
    gap: text between the model's steps, '\\n' or '\\n\\n'.
    trims: whether the chat template strips line ends after the last message,
      as those of Llama 3 and Gemma do.
  """

  def fault(body, before):
    del before
    if 'prompt' in body:
      _, _, written = body['prompt'].partition('\n')
    else:
      last = body['messages'][-1]
      written = last['content'] if last['role'] == 'assistant' else ''
    written = written.strip() if trims else written
    tokens = [*tokens_of(rest_of_chain(written, body.get('seed', 0), gap)), '']
    stops = [] if style == 'deaf' else body.get('stop', [])
    most = body.get('max_completion_tokens', body.get('max_tokens', 10**9))
    text, finish, met, count = '', 'length', None, 0
    for token in tokens[:most]:
      count += 1
      text += token
      met = next((stop for stop in stops if stop in text), None)
      if met or not token:
        finish = 'stop'
        break
    if met and style not in ('tgi', 'transformers'):
      text = text.partition(met)[0]
    choice = {'index': 0, 'message': {'content': text}, 'text': text}
    if style == 'vllm':
      choice['stop_reason'] = met
    if style == 'sglang' and finish == 'stop':
      choice['matched_stop'] = met or 151645
    if style == 'tgi' and finish == 'stop':
      finish = 'stop_sequence' if met else 'stop'
    if style == 'transformers' and count == most:
      finish = 'length'  # even if the text ended just there
    usage = {**USAGE, 'completion_tokens': count}
    return {'choices': [{**choice, 'finish_reason': finish}], 'usage': usage}

  return fault
