"""Finds problem and steps in the text of a conversation.

Clients that score a whole answer send no separators. Their text is a policy's
prompt and what it wrote, often with the special tokens of its chat template.
"""

import functools
import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import Chain, ServedPrm
from prm_jax.serve.protocol import chain_score

# Beginnings and ends of turns: ChatML's, and Llama 3's.
TURN = re.compile(
  r'<\|im_start\|>(?P<chatml>\w+)\n(?P<said>.*?)(?:<\|im_end\|>|\Z)'
  r'|<\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>\n\n'
  r'(?P<told>.*?)(?:<\|eot_id\|>|\Z)',
  re.DOTALL,
)
# Beginnings of turns that TURN does not find: Mistral's, Gemma's, DeepSeek's.
OTHER_TURN = re.compile(
  r'\[INST\]|<start_of_turn>|<[|\uff5c](?:user|im_start|start_\w+)[|\uff5c]>',
  re.IGNORECASE,
)
LAST = re.compile(r'(?:<\|[a-z_]{1,40}\|>|</s>)\Z')
LONGEST_LAST = 48  # characters that LAST may match


def turns(text: str) -> list[tuple[str, str]]:
  """Returns role and text of each turn; [] if there are no turns in it."""
  return [
    (
      match['chatml'] or match['llama'],
      match['said'] if match['said'] is not None else match['told'],
    )
    for match in TURN.finditer(text)
  ]


def behind_turns(text: str) -> str:
  """Returns the text after the end of the last turn."""
  end = 0
  for match in TURN.finditer(text):
    end = match.end()
  return text[end:]


def trimmed(text: str) -> str:
  """Returns a text without special tokens and blanks at its end."""
  end = len(text.rstrip())
  while last := LAST.search(text, max(0, end - LONGEST_LAST), end):
    end = last.start()
    while end and text[end - 1].isspace():
      end -= 1
  return text[:end]


@functools.cache  # once, because all prompts of a client are alike
def warn_of_unread_turns() -> None:
  """Logs that a prompt of another chat template is read as it stands."""
  logging.warning(
    "a prompt has markers of turns, but no user's turn of ChatML or Llama 3: "
    'all of it is read as the problem. Send the problem itself as the prompt, '
    'and the same at the beginning of the text'
  )


def last_exchange(text: str, prompt: str = '') -> tuple[str, str] | None:
  """Returns the last problem of a conversation, and the answer after it.

  Args:
    prompt: the beginning of `text` up to the answer, if the client tells it.

  Returns:
    None if nothing says where the answer begins.
  """
  if prompt and text.startswith(prompt):
    answer = trimmed(text.removeprefix(prompt))
    asked = [said for role, said in turns(prompt) if role == 'user']
    if not asked and OTHER_TURN.search(prompt):
      warn_of_unread_turns()
    return (asked[-1] if asked else prompt), answer
  said = turns(text)
  if len(said) < 2 or said[-1][0] != 'assistant' or said[-2][0] != 'user':
    return None
  return said[-2][1], trimmed(said[-1][1])


def split(answer: str, separator: str) -> list[str]:
  """Returns the steps of an answer, none of them blank."""
  pieces = (piece.strip() for piece in answer.split(separator))
  return [piece for piece in pieces if piece]


class Reading(NamedTuple):
  """Says how conversations are read, and what one number is made of them.

  Attributes:
    separator: text between steps where the PRM's own is not in it.
    how: aggregate of a chain's scores.
    unread: reward of a conversation that cannot be scored, of which the log
      says why; None refuses its request.
  """

  separator: str = '\n\n'
  how: str = 'min'
  unread: float | None = None

  def chain(
    self,
    prm: ServedPrm,
    given: str | Sequence[int],
    field: str,
    prompt: str = '',
  ) -> Chain | None:
    """Encodes a conversation, whether it has the PRM's separators or not.

    Args:
      given: its text, or its ids.

    Returns:
      The chain; None if unscorable and `unread` is set.

    Raises:
      Refused: unscorable and `unread` is None, or ids and the PRM reads none.
    """
    if not isinstance(given, str):
      prm.check_reads_ids(field)  # a client's fault, and not the answer's
    try:
      if isinstance(given, str):
        told = prompt if given.startswith(prompt) else ''
        return self._of_text(prm, given, field, told)
      chain = prm.of_ids(given, field)
      self._check_end(prm, prm.text_behind(given), field)
      return chain
    except Refused as error:
      if self.unread is None:
        raise
      logging.warning('%s; --unread stands for its score', error.message)
      return None

  def _check_end(self, prm: ServedPrm, behind: str, field: str) -> None:
    """Raises Refused if text follows the last separator.

    What a policy writes there would go unread, and unpunished.
    """
    if trimmed(behind):
      raise Refused(
        400,
        f'{field}: text follows the last {prm.separator!r} and would get no '
        'score; end every step with it, or none',
        field,
      )

  def _of_text(
    self, prm: ServedPrm, text: str, field: str, prompt: str
  ) -> Chain:
    # Where the answer is known to begin, nothing in it can pass for the prompt.
    if not prompt and prm.separates(text):
      self._check_end(prm, text.rpartition(prm.separator)[2], field)
      return prm.of_text(text, field)
    found = last_exchange(text, prompt)
    if found is None:
      raise Refused(
        400,
        f'{field}: nothing says where the answer begins; expected the turns of '
        f"ChatML or Llama 3, or {prm.name}'s separators",
        field,
      )
    if not prompt and trimmed(behind_turns(text)):
      raise Refused(
        400,
        f'{field}: text follows the end of the last turn and would get no '
        'score; leave it out, or put it into the turn',
        field,
      )
    problem, answer = found
    own = prm.separates(answer)
    steps = split(answer, prm.separator if own else self.separator)
    if not steps:
      raise Refused(400, f'{field}: there is no step in the answer', field)
    return prm.of_steps(problem, steps, field)

  def reward(self, scores: Sequence[float]) -> float:
    """Returns one number for a chain's scores, of which there may be none."""
    if not scores and self.unread is not None:
      return self.unread
    return chain_score(scores, self.how)
