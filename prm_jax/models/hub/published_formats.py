"""Makes the StepFormat with which a published PRM reads a chain, by style.

`inference/published.py` opens a model's folder and asks for its format here;
encoding a chain needs nothing else. Token ids equal those of the authors' own
code. That code tokenises whole texts, so text that may merge with a step is
tokenised together with the step.
"""

import dataclasses
import pathlib

from prm_jax.data.encoding import StepFormat
from prm_jax.data.tokenizer import HuggingFaceTokenizer
from prm_jax.models.hub.chat_template import chat_renderer, cut, special_tokens
from prm_jax.runtime.errors import UserError

QWEN_SYSTEM = (
  r'Please reason step by step, and put your final answer within \boxed{}.'
)
CHATML = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
"""
QWEN_SEPARATOR = '<extra_0>'
SHEPHERD_TAG = 'ки'
UNSET = 0  # max_length, which make_published_format sets
# Characters that neither texts contain nor templates change (private use area).
MARKS = ''.join(map(chr, range(0xE000, 0xE007)))


def make_published_format(
  style: str,
  directory: pathlib.Path,
  tokenizer: HuggingFaceTokenizer,
  max_length: int,
  separator: str,
) -> StepFormat:
  """Returns the format of a style.

  Args:
    style: one of published.STYLES.
    directory: has the chat template and the names of special tokens.
    separator: text after each step; for style 'trl' only.

  Raises:
    UserError: tokenizer or chat template lack what the style needs.
  """
  if style == 'trl':
    fmt = trl_format(directory, tokenizer, separator)
  else:
    make_format = {
      'qwen_prm': qwen_format,
      'skywork': skywork_format,
      'math_shepherd': shepherd_format,
      'rlhflow': rlhflow_format,
    }[style]
    fmt = make_format(directory, tokenizer)
  return dataclasses.replace(fmt, max_length=max_length)


def qwen_format(
  directory: pathlib.Path, tokenizer: HuggingFaceTokenizer
) -> StepFormat:
  """Makes the format of Qwen2.5-Math-PRM (2501.07301).

  All steps stand in one assistant turn, each followed by <extra_0>. The text
  after the turn follows the last score, so it is left out.
  """
  chat = chat_renderer(directory, fallback=CHATML)

  def render(problem: str, answer: str) -> str:
    roles = ('system', 'user', 'assistant')
    return chat(list(zip(roles, (QWEN_SYSTEM, problem, answer), strict=True)))

  before, between, _ = cut(render(*MARKS[:2]), MARKS[:2], directory)
  prompt, lead = _split_lead(tokenizer, before + '{problem}' + between)
  fmt = StepFormat(
    tokenizer,
    UNSET,
    prompt_prefix=(),
    prompt_template=prompt,
    prompt_suffix=(),
    first_lead=lead,
    separator=(_id_of(QWEN_SEPARATOR, tokenizer, directory),),
  )
  steps = ('one', 'two', 'three')
  answer = QWEN_SEPARATOR.join((*steps, ''))
  return _check_ids(fmt, directory, steps, render('1 + 1', answer))


def skywork_format(
  directory: pathlib.Path, tokenizer: HuggingFaceTokenizer
) -> StepFormat:
  """Makes the format of Skywork-o1-Open-PRM.

  Each step is tokenised by itself and followed by a newline.
  """
  bos = special_tokens(directory).get('bos_token')
  if bos is None:
    raise UserError(
      f'{directory}/tokenizer_config.json has no bos_token, with which a '
      "Skywork prompt begins; copy the file of the model's own folder"
    )
  return StepFormat(
    tokenizer.for_separate_texts(),
    UNSET,
    prompt_prefix=tokenizer.first_ids,
    prompt_template=bos + '{problem}\n',
    prompt_suffix=(),
    separator=(_id_of('\n', tokenizer, directory),),
  )


def shepherd_format(
  directory: pathlib.Path, tokenizer: HuggingFaceTokenizer
) -> StepFormat:
  """Makes the format of Math-Shepherd (2312.08935).

  A chain is the one text 'problem step1 ки\\nstep2 ки'.
  """
  tag = _id_of(SHEPHERD_TAG, tokenizer, directory)
  # If the tag has other tokens inside a text, no step end would be found.
  if tokenizer.encode(' ' + SHEPHERD_TAG) != [tag]:
    raise UserError(
      f'{directory}: the tokenizer reads {SHEPHERD_TAG!r} inside a text as '
      "other tokens than alone; copy the tokenizer of the model's own folder"
    )
  return StepFormat(
    tokenizer,
    UNSET,
    prompt_prefix=tokenizer.first_ids,
    prompt_template='{problem}',
    prompt_suffix=(),
    first_lead=' ',
    next_lead='\n',
    separator=(tag,),
  )


def rlhflow_format(
  directory: pathlib.Path, tokenizer: HuggingFaceTokenizer
) -> StepFormat:
  """Makes the format of RLHFlow's PRMs.

  Every step is a user turn, and the assistant always answers '+'. The score is
  read at the end of the assistant's header, where '+' or '-' comes next.
  """
  chat = chat_renderer(directory)

  def render(problem: str, steps: tuple[str, ...], answers: str) -> str:
    turns = []
    for i, (step, answer) in enumerate(zip(steps, answers, strict=True)):
      user = step if i else f'{problem} {step}'
      turns += [('user', user), ('assistant', answer)]
    return chat(turns)

  problem, *rest = MARKS
  text = render(problem, tuple(rest[::2]), ''.join(rest[1::2]))
  before, between, header, after, *repeated = cut(text, MARKS, directory)
  if repeated[:3] != [header, after, header]:
    raise UserError(
      f'{directory}: the chat template writes later turns in another way than '
      "the first; copy the one of the model's own folder"
    )
  prompt, lead = _split_lead(tokenizer, before + '{problem}' + between)
  turn, next_lead = _split_lead(tokenizer, '+' + after)
  fmt = StepFormat(
    tokenizer,
    UNSET,
    prompt_prefix=(),
    prompt_template=prompt,
    prompt_suffix=(),
    first_lead=lead,
    turn=tuple(tokenizer.encode_template(turn)),
    next_lead=next_lead,
    separator=tuple(tokenizer.encode_template(header)),
    strip=True,
  )
  steps = ('one', 'two', 'three')
  return _check_ids(fmt, directory, steps, render('1 + 1', steps, '+++'))


def trl_format(
  directory: pathlib.Path, tokenizer: HuggingFaceTokenizer, separator: str
) -> StepFormat:
  """Makes the format of TRL's PRMTrainer.

  Prompt, steps and separator are each tokenised alone.
  """
  bos = special_tokens(directory).get('bos_token')
  ends = tuple(tokenizer.encode_template(separator))
  if not ends:
    raise UserError(f'separator {separator!r} has no tokens; give another')
  return StepFormat(
    tokenizer.for_separate_texts(),
    UNSET,
    prompt_prefix=() if bos is None else (_id_of(bos, tokenizer, directory),),
    prompt_template='{problem}',
    prompt_suffix=(),
    separator=ends,
  )


def _id_of(
  text: str, tokenizer: HuggingFaceTokenizer, directory: pathlib.Path
) -> int:
  """Returns the id of a text that must be a single token."""
  ids = tokenizer.encode_template(text)
  # A tokenizer may also return its one token for unknown text.
  if len(ids) != 1 or text not in tokenizer.decode(ids):
    raise UserError(
      f'{directory}: the tokenizer has no token for {text!r}, which this style '
      "needs; copy the model's own tokenizer, or name another style"
    )
  return ids[0]


def _split_lead(tokenizer: HuggingFaceTokenizer, text: str) -> tuple[str, str]:
  """Splits a text after its last special token or problem.

  The rest may merge with the step after it, so it is tokenised with the step.
  """
  fixed = [part for part in (*tokenizer.specials, '{problem}') if part in text]
  end = max((text.rfind(part) + len(part) for part in fixed), default=0)
  return text[:end], text[end:]


def _check_ids(
  fmt: StepFormat, directory: pathlib.Path, steps: tuple[str, ...], text: str
) -> StepFormat:
  """Returns the format if its ids equal those of the whole text.

  Raises:
    UserError: they differ.
  """
  whole = fmt.tokenizer.encode_template(text)
  ids = dataclasses.replace(fmt, max_length=len(whole)).encode('1 + 1', steps)
  if ids.tokens.tolist() != whole[: len(ids.tokens)]:
    raise UserError(
      f'{directory}: the chat template cannot be cut into steps without '
      "changing its tokens; copy template and tokenizer of the model's folder"
    )
  return fmt


def verdict_ids(
  tokenizer: HuggingFaceTokenizer, directory: pathlib.Path
) -> tuple[int, int]:
  """Returns the ids of '-' and '+', the order of the classes wrong, right."""
  return _id_of('-', tokenizer, directory), _id_of('+', tokenizer, directory)
