"""Selects which chains a labelling job labels.

    chains -> select -> those to label, and a report for the ledger

`label.py` reads the chains before and passes the selected ones to a source. A
selection by a PRM is kept in a file, because its scores differ in the last
digit from machine to machine: a resumed job must label the same chains.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.data import builder, chain_sets
from prm_jax.data.chains import Chain
from prm_jax.inference import loading
from prm_jax.inference.protocols import Scoring, StepScorer
from prm_jax.jobs import policies
from prm_jax.jobs.critics import open_generative
from prm_jax.jobs.meshes import own_mesh
from prm_jax.jobs.settings.items import LabelSettings
from prm_jax.jobs.settings.prms import AskedPrmConfig
from prm_jax.jobs.settings.shared import MeshConfig
from prm_jax.labels import active, consensus
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from prm_jax.runtime.workdir import Workdir, read_results, write_json

FILE = 'selection.json'
Selected = tuple[list[Chain], dict[str, Any]]


def select(
  chains: Sequence[Chain], settings: LabelSettings, workdir: Workdir
) -> Selected:
  """Selects by the rule in the settings."""
  if settings.select == 'consensus':
    return select_agreed(chains, settings)
  return select_convincing(chains, settings, workdir)


def select_convincing(
  chains: Sequence[Chain], settings: LabelSettings, workdir: Workdir
) -> Selected:
  """Selects the most convincing wrong answers; see `labels/active.py`.

  A chain without a known outcome, because its answer could not be compared in
  time, is left out.

  Raises:
    UserError: the selection kept in the workdir is of other chains.
  """
  checked = [chain for chain in chains if chain.outcome is not None]
  unchecked = {'unchecked': len(chains) - len(checked)}
  chains = checked or chains  # `active` reports that none is checked
  config = settings.active
  if not settings.needs_prm:
    selection, report = active.select(chains, config, None)
    taken = active.take(chains, selection.indices, config)
    return taken, report._asdict() | unchecked
  made_of = {
    'chains': builder.fingerprint(chains),
    'prm': name_of(settings.prm),
    'active': dataclasses.asdict(config),
  }
  del made_of['active']['batch_size']  # it changes the speed alone
  kept = workdir.read_json(FILE)
  fits = kept.get('made_of') == made_of
  if kept and not fits and (workdir / 'data.json').exists():
    raise UserError(
      f'{workdir / FILE} was made of other chains than '
      f'{settings.chains.workdir!r} has now; bring those back, or choose '
      'another --workdir'
    )

  def make(scorer: active.ScoresSteps) -> dict[str, Any]:
    selection, report = active.select(chains, config, scorer)
    return {
      'made_of': made_of,
      'indices': selection.indices,
      'scores': selection.scores,
      'report': report._asdict() | unchecked,
    }

  processes.check_same(
    'what is selected from',
    json.dumps(made_of, sort_keys=True),
    'give all processes the same files',
  )
  if processes.exchange('selection', str(fits))[0] != str(True):
    scorer = open_scorer(settings, workdir)  # they read a checkpoint together
    if settings.prm.kind != 'workdir':  # a copy, or a client, of each process
      processes.first_alone(
        'selection by one process',
        lambda: write_json(workdir / FILE, make(scorer)),
      )
    else:  # by all, as the model may be spread over them
      workdir.write_json(FILE, make(scorer))
  # That of process 0, as scores differ between machines. It is sent, as others
  # may not see the file yet.
  made = json.dumps(workdir.read_json(FILE)) if processes.is_first() else ''
  kept = json.loads(processes.broadcast('selected', made))
  return active.take(chains, kept['indices'], config), kept['report']


def open_scorer(
  settings: LabelSettings, workdir: Workdir
) -> active.ScoresSteps:
  """Opens the PRM that selects."""
  prm = settings.prm
  if prm.kind == 'endpoint':
    return TextScorer(policies.open_remote_prm(prm.endpoint, workdir))
  if prm.kind == 'generative':
    mesh = own_mesh(settings.mesh)
    critic = open_generative(prm.generative, settings.seed, mesh, workdir)
    return TextScorer(critic)
  model = own_mesh(settings.mesh).shape['model']
  return loading.load(
    prm.path,
    style=prm.style,
    mesh=make_mesh(MeshConfig(model=model).shape),
    dtype=prm.dtype,
  )


class TextScorer:
  """Scores chains with any step scorer, as a `Scorer` does.

  Args:
    prm: such as a client of a server, or a critic.
  """

  def __init__(self, prm: StepScorer) -> None:
    self._prm = prm

  def score_many(
    self, chains: Sequence[tuple[str, Sequence[str]]]
  ) -> list[np.ndarray]:
    """Returns the step scores [P] of each (problem, steps) pair.

    Raises:
      UserError: the server does not answer, or refuses a chain or a part of it.
    """
    asked = [Scoring(problem, tuple(steps)) for problem, steps in chains]
    answers = [each for [each] in self._prm.score(asked)]
    for request, found in zip(asked, answers, strict=True):
      if found.lost:
        raise UserError(
          f'{found.lost} critiques of a chain could not be had; the same '
          'command asks again'
        )
      if found.refused or not found.scores:
        raise UserError(
          f'{self._prm.name} refused a chain of {len(request.steps)} steps of '
          f'the problem {request.problem[:60]!r}; it may be too long for the '
          'PRM: leave it out'
        )
    return [np.array(each.scores) for each in answers]


def name_of(prm: AskedPrmConfig) -> dict[str, str]:
  """Returns what determines a PRM's scores, wherever its server is."""
  if prm.kind == 'endpoint':
    server = prm.endpoint
    names = ('api', 'model', 'system', 'separator')
    return {name: getattr(server, name) for name in names}
  if prm.kind == 'generative':
    return {'critic': prm.generative.identity}
  return {'path': prm.path, 'style': prm.style, 'dtype': prm.dtype}


def select_agreed(chains: Sequence[Chain], settings: LabelSettings) -> Selected:
  """Selects chains with the same labels in another labelling job.

  See `labels/consensus.py`.
  """
  others = chain_sets.read(settings.agrees_with, 'agrees_with')
  ours, config = settings.chains, settings.consensus
  of_ours = ours.workdir if ours.kind == 'workdir' else ''
  first = config.first or find_source(of_ours, 'first')
  second = config.second or find_source(settings.agrees_with, 'second')
  if second == first and not config.second:
    second += ' of agrees_with'  # of another policy, or with other settings
  kept, report = consensus.consensus(
    chains,
    others,
    consensus.ConsensusConfig(first, second, config.hard_above),
  )
  shares = {
    name: {**counts._asdict(), 'share': counts.share}
    for name, counts in report._asdict().items()
    if name != 'unpaired'
  }
  return kept, shares | {'unpaired': report.unpaired}


def find_source(workdir: str, unknown: str) -> str:
  """Returns the name of the source that labelled the chains of a job.

  Args:
    workdir: the job's workdir; '' if no job labelled the chains.
    unknown: the value to return if the source is unknown.
  """
  if not workdir:
    return unknown
  folder = paths.open_path(workdir)
  about = read_results(folder).get('manifest', {})
  return about.get('source', unknown)
