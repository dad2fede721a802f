"""Word problems: a second domain in which the truth is known exactly.

Stands beside `arithmetic` in front of the pipeline, and makes chains of
sentences instead of symbols. Problems and right solutions come from the 100
GSM-Symbolic templates (Mirzadeh et al., 2024) that the package reasoning-gym
carries (`word_templates`); errors are planted in some, and carried on.

    reasoning-gym -> question, worked answer -> equations.parse -> Solution
      -> planting.chain_with_errors -> Chain

    problem  A kid has 13 books. His sister has 10 fewer books than he has. ...
    step 0   His sister has 13 - 10 = 3 books.
    step 1   Together, they have 13 + 3 = 16 books.
    step 2   The answer is 16.

Labels are those of `planting`.
"""

import dataclasses

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.domains import corruptions
from prm_jax.data.domains.planting import chain_with_errors
from prm_jax.data.domains.word_templates import (
  CHAIN_STREAM,
  MAX_DRAWS,
  Template,
  generator,
  sample_problem,
  template,
  template_indices,
)
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class WordsConfig:
  """The domain and its errors.

  Attributes:
    templates: 'train' (80 templates) or 'held_out' (20 others), before those
      that cannot be used are left out; see `coverage`.
    error_share: probability that a chain has an error.
    repeat_share: probability that a chain without error repeats a step.
    kinds: the errors to plant, from `corruptions.KINDS`.
  """

  templates: str = 'train'
  error_share: float = 0.5
  repeat_share: float = 0.05
  kinds: tuple[str, ...] = corruptions.KINDS

  def __post_init__(self) -> None:
    if self.templates not in ('train', 'held_out'):
      raise UserError(
        f'words templates={self.templates!r}: expected train or held_out'
      )
    for name in ('error_share', 'repeat_share'):
      value = getattr(self, name)
      if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(
          f'words {name}={value!r}: expected a probability in [0, 1]'
        )
    # Configs give lists; a tuple keeps the dataclass hashable.
    object.__setattr__(self, 'kinds', tuple(self.kinds))
    unknown = sorted(set(self.kinds) - set(corruptions.KINDS))
    if unknown or not self.kinds:
      raise UserError(
        f'words kinds={self.kinds!r}: expected one or more of '
        f'{", ".join(corruptions.KINDS)}'
      )


def coverage(config: WordsConfig) -> dict[int, Template]:
  """Every template of the config's group, with what it offers.

  Raises:
    UserError: the package reasoning-gym is missing.
  """
  return {t: template(t) for t in template_indices(config.templates)}


def make_chains(
  config: WordsConfig, count: int, seed: int, samples: int = 1
) -> list[Chain]:
  """Chains of distinct problems, all samples of a problem in a row.

  The template is drawn before it is decided whether a chain is wrong, so it
  says nothing of the label. Nearly all templates offer all kinds, so a uniform
  draw among those on offer makes them about equally frequent. A smaller
  `count` gives the first chains of a larger one, so held-out problems of the
  same templates are a slice of one call, never a second call.

  Args:
    count: number of problems.
    seed: of everything.
    samples: chains of each problem, right or wrong each by itself.
  Returns:
    count * samples chains with verifier labels. `meta`: `id`, `dataset`,
    `problem_id` (the question), `template` (0 to 99), `kind` ('right',
    'repeated_step' or one of `corruptions.KINDS`) and `error_steps`, the
    indices of the steps that an error was planted in.

  Raises:
    UserError: the package reasoning-gym is missing, no template of the group
      offers any of the kinds, or its templates run out of distinct problems.
  """
  for name, value in (('count', count), ('samples', samples)):
    if not isinstance(value, int | np.integer) or value < 1:
      raise UserError(f'{name}={value!r}: expected a whole number from 1 up')
  if not isinstance(seed, int | np.integer) or seed < 0:
    raise UserError(f'seed={seed!r}: expected a whole number from 0 up')
  offers = {
    t: kinds
    for t, found in coverage(config).items()
    if (kinds := [k for k in config.kinds if k in found.kinds])
  }
  if not offers:
    raise UserError(
      f'words kinds={config.kinds}: no {config.templates} template offers '
      'them; name other kinds'
    )
  chains, seen, draws = [], set(), 0
  while len(seen) < count:
    rng = generator(seed, CHAIN_STREAM, draws)
    problem = sample_problem(int(rng.choice(list(offers))), rng)
    kinds = offers[problem.template]
    written = [
      chain_with_errors(
        problem.question,
        problem.solution,
        problem.links,
        kinds,
        config.error_share,
        config.repeat_share,
        {
          'id': f'{problem.question} # {sample}',
          'dataset': 'words',
          'problem_id': problem.question,
          'generator': f'gsm_symbolic_{problem.template}',
          'template': problem.template,
        },
        rng,
      )
      for sample in range(samples)
    ]
    draws += 1
    if problem.question not in seen and all(written):
      seen.add(problem.question)
      chains += written
    elif draws > MAX_DRAWS + 10 * count:
      raise UserError(
        f'words count={count}: only {len(seen)} distinct problems found; '
        'lower the count'
      )
  return chains
