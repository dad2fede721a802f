"""Finds problem and steps in the text of a conversation.

Clients that score a whole answer send no separators. Their text is a policy's
prompt and what it wrote, often with the special tokens of its chat template.
"""

import re
from collections.abc import Sequence

from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import Chain, ServedPrm

# Beginnings and ends of turns: ChatML's, and Llama 3's.
TURN = re.compile(
  r'<\|im_start\|>(?P<chatml>\w+)\n(?P<said>.*?)(?:<\|im_end\|>|\Z)'
  r'|<\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>\n\n'
  r'(?P<told>.*?)(?:<\|eot_id\|>|\Z)',
  re.DOTALL,
)
END = re.compile(r'(?:<\|[a-z_]+\|>|</s>|\s)+\Z')


def turns(text: str) -> list[tuple[str, str]]:
  """Returns role and text of each turn; [] if there are no turns in it."""
  return [
    (
      match['chatml'] or match['llama'],
      match['said'] if match['said'] is not None else match['told'],
    )
    for match in TURN.finditer(text)
  ]


def last_exchange(text: str, prompt: str = '') -> tuple[str, str]:
  """Returns the last problem of a conversation, and the answer after it.

  Args:
    prompt: the beginning of `text` up to the answer, if the client tells it.
  """
  if prompt and text.startswith(prompt):
    answer = END.sub('', text.removeprefix(prompt))
    asked = [said for role, said in turns(prompt) if role == 'user']
    return (asked[-1] if asked else prompt), answer
  said = turns(text)
  if len(said) < 2 or said[-1][0] != 'assistant' or said[-2][0] != 'user':
    return '', END.sub('', text)
  return said[-2][1], said[-1][1]


def split(answer: str, separator: str) -> list[str]:
  """Returns the steps of an answer, none of them blank."""
  pieces = (piece.strip() for piece in answer.split(separator))
  return [piece for piece in pieces if piece]


def chain_of(
  prm: ServedPrm, text: str, separator: str, field: str, prompt: str = ''
) -> Chain:
  """Encodes a conversation, whether it has the PRM's separators or not.

  Args:
    separator: text between steps where the PRM's own is not in it.

  Raises:
    Refused: there is no step in it.
  """
  if prm.reads_text and prm.separator in text:
    return prm.of_text(text, field)
  problem, answer = last_exchange(text, prompt)
  steps: Sequence[str] = split(answer, separator)
  if not steps:
    raise Refused(400, f'{field}: there is no step in the answer', field)
  return prm.of_steps(problem, steps, field)
