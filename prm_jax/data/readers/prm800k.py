"""Reads PRM800K, human ratings of single steps (Lightman et al., 2023).

There are two formats: `prm800k`, the raw labelling sessions of both phases, and
`prm800k_flat`, one chain per record.
"""

from typing import Any

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.readers import records
from prm_jax.data.readers.records import Fields, Skip
from prm_jax.runtime.errors import UserError

_LABELS = {
  1: StepLabel(1.0),
  0: StepLabel(1.0, neutral=True),
  -1: StepLabel(0.0),
}
_UNKNOWN = StepLabel(None)
_Rated = tuple[str, StepLabel]
_FINISHED = ('found_error', 'solution', 'bad_problem', 'give_up')


def read_prm800k(record: Fields) -> list[Chain] | Skip:
  """Expands a labelling session into the chains of its prefix tree.

  At every step the labeller rated alternatives and continued with one of them,
  or with a step written by hand. The first chain is the path that was taken,
  with its ratings. Every other alternative becomes a chain: the path up to it
  without labels, then the alternative with its rating. So each rating occurs
  once. In phase 2 the session stops at the first error and nothing is chosen;
  there the path ends with the wrong step of the pre-generated solution.

  Sessions for quality control or screening, and those that end in `give_up` or
  `bad_problem`, are skipped. `outcome` is None, because `finish_reason` says
  that the labeller was done and not that the answer was checked.
  """
  question, label = (records.field(record, n) for n in ('question', 'label'))
  problem = records.text(question, 'problem')
  reason = records.text(label, 'finish_reason')
  if reason not in _FINISHED:
    raise UserError(
      f"'finish_reason' is {records.show(reason)}: expected one of "
      f'{", ".join(_FINISHED)}'
    )
  if records.flag(record, 'is_quality_control_question'):
    return Skip('quality control')
  if records.flag(record, 'is_initial_screening_question'):
    return Skip('initial screening')
  if reason in ('bad_problem', 'give_up'):
    return Skip(reason)

  path, branches = _walk(
    records.items(label, 'steps'), question.get('pre_generated_steps')
  )
  chains = [path] if path else []
  for depth, branch in branches:
    shared = [(step, _UNKNOWN) for step, _ in path[:depth]]
    chains.append([*shared, branch])
  if not chains:
    return Skip('no step was reached')
  meta = records.keep(record, 'generation') | {'finish_reason': reason}
  if answers := records.keep(question, 'ground_truth_answer'):
    meta['truth'] = answers['ground_truth_answer']
  return [_chain(problem, chain, meta) for chain in chains]


def _walk(
  steps: list[Any], generated: Any
) -> tuple[list[_Rated], list[tuple[int, _Rated]]]:
  """Returns the path taken, and (depth, step) of every other alternative."""
  path, branches = [], []
  ended = False
  for t, step in enumerate(steps):
    rated = [_rated(completion) for completion in _completions(step)]
    human = records.field(step, 'human_completion')
    if ended and (rated or human is not None):
      raise UserError(
        f'label.steps[{t}] follows a step at which nothing was chosen'
      )
    chosen = records.field(step, 'chosen_completion')
    if chosen is not None:
      chosen = records.integer(step, 'chosen_completion', 0, len(rated) - 1)
    elif human is None:
      ended = True
      chosen = _generated_step(rated, generated, t)
    alternatives = dict(enumerate(rated))
    if human is not None:
      alternatives['human'] = _rated(human)
    taken = 'human' if chosen is None else chosen
    branches += [
      (len(path), alternative)
      for key, alternative in alternatives.items()
      if key != taken
    ]
    if taken in alternatives:
      path.append(alternatives[taken])
  return path, branches


def _completions(step: Any) -> list[Any]:
  """Returns the rated alternatives; raw files may have null for none."""
  if records.field(step, 'completions') is None:
    return []
  return records.items(step, 'completions')


def _generated_step(rated: list[_Rated], generated: Any, t: int) -> int | None:
  """Returns which alternative is step t of the pre-generated solution."""
  if not isinstance(generated, list) or t >= len(generated):
    return None
  texts = [text for text, _ in rated]
  step = generated[t].strip() if isinstance(generated[t], str) else None
  return texts.index(step) if step in texts else None


def _rated(completion: Any) -> _Rated:
  rating = records.field(completion, 'rating')
  return records.text(completion, 'text'), rating_label(rating, "'rating'")


def rating_label(rating: Any, name: str) -> StepLabel:
  """Returns the label of a rating: 1, 0 (neutral), -1 or null (unknown).

  `name` is for the error message.
  """
  if rating is None:
    return _UNKNOWN
  if type(rating) not in (int, float) or rating not in _LABELS:
    raise UserError(
      f'{name} is {records.show(rating)}: expected 1, 0, -1 or null'
    )
  return _LABELS[rating]


def _chain(problem: str, rated: list[_Rated], meta: Fields) -> Chain:
  steps, labels = zip(*rated, strict=True)
  # The last step of a finished solution ends in '\n\n# Answer\n\n320,000'.
  answer = steps[-1].partition('# Answer')[2].strip() or None
  return Chain(problem, steps, answer, labels=labels, meta=meta)


def read_prm800k_flat(record: Fields) -> list[Chain]:
  """Reads {id, problem, steps, ratings}; ratings are 1, 0, -1 or null."""
  steps = records.steps(record, 'steps')
  ratings = records.items(record, 'ratings')
  if len(ratings) != len(steps):
    raise UserError(f'{len(ratings)} ratings for {len(steps)} steps')
  labels = [rating_label(r, f'ratings[{i}]') for i, r in enumerate(ratings)]
  rated = list(zip(steps, labels, strict=True))
  problem = records.text(record, 'problem')
  return [_chain(problem, rated, records.keep(record, 'id'))]
