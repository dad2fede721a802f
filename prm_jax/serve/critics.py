"""Serves a critic: a PRM that writes what it thinks of each step.

    problem and steps -> their bytes -> gather.py -> CriticScorer
      -> questions to the critic (inference/generative_prm.py) -> scores

A critic reads questions about a chain, and not the chain's own tokens. So a
chain is held, counted and told to other processes as the UTF-8 bytes of its
texts, and has to be sent as a problem and steps.
"""

from collections.abc import Sequence

from jax.sharding import Mesh

from prm_jax.data.critiques.styles import STYLES
from prm_jax.data.encoding import StepFormat, check_steps
from prm_jax.inference import loading
from prm_jax.inference.generative_prm import CritiqueConfig, GenerativePrm
from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.writer import NO_LIMIT
from prm_jax.models.prefix_store import Ids
from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from prm_jax.serve.faults import Refused
from prm_jax.serve.prms import Chain, ServedPrm

READS_STEPS = 'asks about problem and steps; send them to /v1/steps'


class CriticScorer:
  """Is a `prms.ChainScorer` that asks a critic.

  Args:
    prm: asks it.
    fmt: encodes the questions.
  """

  def __init__(self, prm: GenerativePrm, fmt: StepFormat) -> None:
    self._prm, self._format = prm, fmt

  def encode(self, problem: str, steps: Sequence[str]) -> Chain:
    """Returns the bytes of the problem and of each step.

    Raises:
      UserError: there are no steps, they are one text, or the critic has no
        words or room for the question about them.
    """
    check_steps(steps)
    question = self._prm.question(Scoring(problem, tuple(steps)))
    length = len(self._format.encode_prompt(question))
    if length >= self._format.max_length:
      raise UserError(
        f'the question about this chain, of {length:,} tokens, leaves no room '
        f'for an answer in {self._format.max_length:,}; shorten the chain'
      )
    return [tuple(text.encode()) for text in (problem, *steps)]

  def score_ids(self, chains: Sequence[Sequence[Ids]]) -> list[ScoredSteps]:
    """Returns the scores of chains that `encode` made."""
    asked = []
    for chain in chains:
      problem, *steps = (bytes(ids).decode() for ids in chain)
      asked.append(Scoring(problem, tuple(steps)))
    return [answer for [answer] in self._prm.score(asked)]


class ServedCritic(ServedPrm):
  """Is one of a server's PRMs, which writes."""

  writes = True
  reads_text = False

  def of_text(self, text: str, field: str, begin: bool = True) -> Chain:
    """Raises Refused: a critic reads no text with separators in it."""
    raise Refused(400, f'{field}: {self.name} {READS_STEPS}', field)

  def check_reads_ids(self, field: str) -> None:
    """Raises Refused: a critic reads no ids."""
    raise Refused(400, f'{field}: {self.name} {READS_STEPS}', field)


def open_critic(
  name: str, path: str, style: str, critiques: int, dtype: str, mesh: Mesh
) -> ServedCritic:
  """Opens a critic that was trained here.

  Args:
    style: the style that it learned, one of `styles.STYLES`.
    critiques: of each question; one is the most likely, more are drawn.

  Raises:
    UserError: several processes would run the critiques' Python, each its own.
  """
  if processes.count() > 1 and STYLES[style].runs_code:
    raise UserError(
      f'--prm {path}: in the style {style} every process runs the Python of '
      'critiques, and they may see other outputs; serve it by one process, or '
      'a critic of another style'
    )
  # Only its window ends a critique that it does not end itself.
  sampling = SamplingConfig(float(critiques > 1), max_tokens=NO_LIMIT)
  critic = loading.load_policy(path, sampling, mesh=mesh, dtype=dtype)
  config = CritiqueConfig(
    style=style,
    samples=critiques,
    ask='chain' if STYLES[style].of_outcome else 'steps',
  )
  prm = GenerativePrm(critic, config)
  scorer = CriticScorer(prm, critic.format)
  return ServedCritic(name, scorer, critic.format, prm.name)
