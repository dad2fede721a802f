"""Makes word problems and chains of sentences with exact step labels.

Like `arithmetic`, this domain stands at the start of the pipeline, where the
readers stand for real data. Problems and right solutions come from the 100
GSM-Symbolic templates (Mirzadeh et al., 2024) in the package reasoning-gym
(`word_templates`). Errors are planted in some of the solutions.

    reasoning-gym -> question, worked answer -> equations.parse -> Solution
      -> planting.chain_with_errors -> Chain

    problem  A kid has 13 books. His sister has 10 fewer books than he has. ...
    step 0   His sister has 13 - 10 = 3 books.
    step 1   Together, they have 13 + 3 = 16 books.
    step 2   The answer is 16.

The docstring of `planting` says what the labels mean.
"""

import dataclasses
from typing import Annotated

from prm_jax.data.chains import Chain
from prm_jax.data.domains import corruptions
from prm_jax.data.domains.draws import check_count, make_generator
from prm_jax.data.domains.planting import PlantingConfig, chain_with_errors
from prm_jax.data.domains.word_templates import (
  CHAIN_STREAM,
  MAX_DRAWS,
  Template,
  profile_template,
  sample_problem,
  template_indices,
)
from prm_jax.runtime import checks
from prm_jax.runtime.checks import each, one_of, within
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class WordsConfig:
  """Says which problems are made and which errors are planted.

  Attributes:
    templates: 'train' (80 templates) or 'held_out' (20 others). Some of them
      cannot be used; `profile_templates` says which and why.
    error_share: probability that a chain has an error.
    repeat_share: probability that a chain without error repeats a step.
    kinds: the kinds of error to plant, from `corruptions.KINDS`.
  """

  templates: Annotated[str, one_of('train', 'held_out')] = 'train'
  error_share: Annotated[float, within(0, 1)] = 0.5
  repeat_share: Annotated[float, within(0, 1)] = 0.05
  kinds: Annotated[tuple[str, ...], each(one_of(*corruptions.KINDS))] = (
    corruptions.KINDS
  )

  def __post_init__(self) -> None:
    checks.check(self)
    if not self.kinds:
      checks.fail(
        'kinds',
        self.kinds,
        f'expected one or more of {", ".join(corruptions.KINDS)}',
      )


def profile_templates(config: WordsConfig) -> dict[int, Template]:
  """Returns what each template of the config's group offers.

  Raises:
    UserError: the package reasoning-gym is missing.
  """
  return {t: profile_template(t) for t in template_indices(config.templates)}


def make_chains(
  config: WordsConfig, count: int, seed: int, samples: int = 1
) -> list[Chain]:
  """Makes chains of distinct problems; the samples of a problem are in a row.

  The template is drawn before it is decided whether a chain is wrong, so the
  template says nothing about the label. Kinds of error are about equally
  frequent, because nearly all templates offer all of them. A smaller `count`
  gives the first chains of a larger one. Take held-out problems of the same
  templates as a slice of one call: a second call may repeat problems.

  Args:
    samples: number of chains per problem; each may be right or wrong.

  Returns:
    count * samples chains with verifier labels. Their `meta` holds `id`,
    `dataset`, `problem_id` (the question), `generator`, `template` (0 to 99),
    `truth` (the right answer), `kind` ('right', 'repeated_step' or one of
    `corruptions.KINDS`), `error_steps`, the indices of the steps in which an
    error was planted, and `solution`, the right steps.

  Raises:
    UserError: the package reasoning-gym is missing, no template of the group
      offers any of the kinds, or the templates have too few distinct problems.
  """
  check_count('count', count)
  check_count('samples', samples)
  offers = {
    t: PlantingConfig(kinds, config.error_share, config.repeat_share)
    for t, template in profile_templates(config).items()
    if (kinds := tuple(k for k in config.kinds if k in template.kinds))
  }
  if not offers:
    raise UserError(
      f'words kinds={config.kinds}: no {config.templates} template offers '
      'them; name other kinds'
    )
  chains, seen, draws = [], set(), 0
  while len(seen) < count:
    rng = make_generator(seed, CHAIN_STREAM, draws)
    problem = sample_problem(int(rng.choice(list(offers))), rng)
    written = [
      chain_with_errors(
        problem.question,
        problem.solution,
        problem.links,
        offers[problem.template],
        {
          'id': f'{problem.question} # {sample}',
          'dataset': 'words',
          'problem_id': problem.question,
          'generator': f'gsm_symbolic_{problem.template}',
          'template': problem.template,
          'truth': problem.solution.text(-1),
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
