"""Scores the chains that a labelling job selects from, and keeps the scores.

    chains -> PRM, batch by batch -> WORKDIR/selection -> step scores

`selections.py` calls it. Scores are written when a batch has them, because a
PRM may take hours, such as one that writes critiques or is at a server: after
an interruption, or when critiques were lost, the same command scores the rest.
"""

import contextlib
import hashlib
import json
from collections.abc import Container, Sequence

import numpy as np

from prm_jax.data import builder
from prm_jax.data.chains import Chain
from prm_jax.inference import loading
from prm_jax.inference.chain_scorer import ChainScorer
from prm_jax.inference.driver import Cost, Ended
from prm_jax.inference.protocols import ScoredSteps, Scoring, StepScorer
from prm_jax.jobs import journal, policies
from prm_jax.jobs.critics import open_generative
from prm_jax.jobs.engine import Records
from prm_jax.jobs.journal import Journal
from prm_jax.jobs.meshes import own_mesh
from prm_jax.jobs.settings.items import LabelSettings
from prm_jax.jobs.settings.shared import MeshConfig
from prm_jax.labels import active
from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from prm_jax.runtime.workdir import Workdir

FOLDER = 'selection'


def score_all(
  chains: Sequence[Chain], settings: LabelSettings, workdir: Workdir
) -> list[np.ndarray | None]:
  """Scores all chains, but those whose scores were kept before.

  All processes of the job call it.

  Returns:
    In process 0 the step scores [P] of each chain, None if the PRM cannot score
    it; [] in the others.

  Raises:
    UserError: the PRM cannot be opened or asked, or its scores are not finite.
  """
  prm = open_scorer(settings, workdir)  # they read a checkpoint together
  # A model in the job's devices may be spread over all processes; otherwise it
  # is a copy, or a client, of each.
  together = settings.prm.kind == 'workdir'
  first = processes.is_first()
  kept = open_records(chains, prm, workdir) if first else None
  known = journal.latest(kept.read()) if kept else {}
  with kept.open_own() if kept else contextlib.nullcontext() as lines:
    # The other processes may not see the file yet.
    left = unscored(len(chains), known, settings.active.batch_size, together)
    left = json.loads(
      processes.broadcast('not scored before', json.dumps(left))
    )
    for numbers in left:
      batch = [chains[n] for n in numbers]
      found = ask(prm, batch) if together or first else []
      processes.first_alone(
        'scores', keep, lines, batch, found, numbers, settings.active
      )
  return read(kept) if kept else []


def open_records(
  chains: Sequence[Chain], prm: StepScorer, workdir: Workdir
) -> Records:
  """Returns where the scores of these chains by this PRM are kept.

  Other chains or another PRM have another folder: until a workdir has begun
  with a selection, its command may change.
  """
  identity = {'input': builder.fingerprint(chains), 'prm': prm.name}
  digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
  return Records(workdir / FOLDER / digest, identity)


def unscored(
  count: int, known: Container[int], size: int, whole: bool
) -> list[list[int]]:
  """Returns the numbers of the chains to score, batch by batch.

  Args:
    count: number of all chains.
    known: numbers of those that have scores.
    size: of a batch.
    whole: whether to score all of a batch of which one is left, because the
      last digit of a score depends on the others that it was scored with.
  """
  batches = []
  for start in range(0, count, size):
    batch = list(range(start, min(start + size, count)))
    if left := [number for number in batch if number not in known]:
      batches.append(batch if whole else left)
  return batches


def ask(prm: StepScorer, chains: Sequence[Chain]) -> list[ScoredSteps]:
  """Returns the answer to each chain."""
  asked = [Scoring(chain.problem, chain.steps) for chain in chains]
  return [each for [each] in prm.score(asked)]


def keep(
  lines: Journal,
  chains: Sequence[Chain],
  found: Sequence[ScoredSteps],
  numbers: Sequence[int],
  config: active.ActiveConfig,
) -> None:
  """Writes the scores of a batch to the journal.

  A chain that the PRM refuses, because it is too long for instance, has none.

  Args:
    numbers: of its chains, among all.

  Raises:
    UserError: a score is not finite; or critiques of a chain were lost, and
      then the scores of the others are written.
  """
  answered = [
    (number, chain, answer)
    for number, chain, answer in zip(numbers, chains, found, strict=True)
    if not answer.lost
  ]
  scored = [
    (chain, np.array(answer.scores))
    for _, chain, answer in answered
    if answer.scores and not answer.refused
  ]
  if scored:  # it checks them
    whose, scores = zip(*scored, strict=True)
    active.chain_scores(whose, config, scores)
  for number, chain, answer in answered:
    if answer.refused or not answer.scores:
      why = f'the PRM cannot score the chain {chain.meta["id"]!r}'
      lines.write(Ended(number, (), why, Cost()))
      continue
    finite = [s if np.isfinite(s) else None for s in answer.scores]
    meta = {'id': chain.meta['id'], 'scores': finite}
    written = Chain(chain.problem, chain.steps, meta=meta)
    lines.write(Ended(number, (written,), '', Cost()))
  for chain, answer in zip(chains, found, strict=True):
    if answer.lost:
      raise UserError(
        f'{answer.lost} critiques of the chain {chain.meta["id"]!r} could not '
        'be had; the same command asks again'
      )


def read(kept: Records) -> list[np.ndarray | None]:
  """Returns the scores of each chain, None if it has none."""
  return [
    np.array(ended.chains[0].meta['scores'], np.float32)  # None is NaN
    if ended.chains
    else None
    for ended in journal.latest(kept.read()).values()
  ]


def open_scorer(settings: LabelSettings, workdir: Workdir) -> StepScorer:
  """Opens the PRM that selects."""
  prm = settings.prm
  if prm.kind == 'endpoint':
    return policies.open_remote_prm(prm.endpoint, workdir)
  if prm.kind == 'generative':
    mesh = own_mesh(settings.mesh)
    return open_generative(prm.generative, settings.seed, mesh, workdir)
  model = own_mesh(settings.mesh).shape['model']
  return ChainScorer(
    loading.load(
      prm.path,
      style=prm.style,
      mesh=make_mesh(MeshConfig(model=model).shape),
      dtype=prm.dtype,
    )
  )
