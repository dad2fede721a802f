"""A server on loopback whose model writes steps, and which honours `stop`.

It tells what ended a text as servers do: some in words, some by leaving the
stop in, some not at all.
"""

import re

from tests.shared.faulty_server import USAGE

# How a server tells that a text ended at a stop: vLLM, SGLang, TGI and
# `transformers serve`; OpenAI and llama.cpp do not. Some pay no heed to it.
STYLES = ('vllm', 'sglang', 'tgi', 'transformers', 'openai', 'deaf')
DEPTH = 5


def step(n, seed):
  """Step n as it is drawn with a seed; the last states an answer."""
  number = seed % 7
  if n == DEPTH - 1:
    return f'#### {number}'
  return f'{n}: we take {number} and go on to what comes after it'


def going_on(written, seed, gap='\n'):
  """What the model writes after what it is shown, up to its end."""
  lines = [line for line in written.split('\n') if line]
  if lines and not written.endswith('\n'):
    text = gap if len(lines) < DEPTH else ''
  else:
    shown = len(written) - len(written.rstrip('\n'))
    text = '\n' * max(0, len(gap) - shown) if lines else ''
    text = text if len(lines) < DEPTH else ''
  return text + gap.join(step(n, seed) for n in range(len(lines), DEPTH))


def tokens_of(text):
  """Words and line ends."""
  return re.findall(r'\n|[^\n ]+ ?|[ ]', text)


def answer(style, gap='\n', trims=False):
  """A `FaultyServer.fault` that answers so.

  Args:
    style: one of STYLES.
    gap: between the model's steps: a line end, or a blank line, too.
    trims: whether line ends after the last message are lost on their way to
      the model, as in the chat templates of Llama 3 and Gemma.
  """

  def fault(body, before):
    del before
    if 'prompt' in body:
      _, _, written = body['prompt'].partition('\n')
    else:
      last = body['messages'][-1]
      written = last['content'] if last['role'] == 'assistant' else ''
    written = written.strip() if trims else written
    tokens = [*tokens_of(going_on(written, body.get('seed', 0), gap)), '']
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
      finish = 'length'  # also of a text that ended just there
    usage = {**USAGE, 'completion_tokens': count}
    return {'choices': [{**choice, 'finish_reason': finish}], 'usage': usage}

  return fault
