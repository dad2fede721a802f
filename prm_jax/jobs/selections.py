"""Selects which chains a labelling job labels.

    chains (-> selection_scores.py) -> select -> those to label, and a report
      for the ledger

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
from prm_jax.jobs import selection_scores
from prm_jax.jobs.settings.items import LabelSettings
from prm_jax.jobs.settings.prms import AskedPrmConfig
from prm_jax.labels import active, consensus
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import (
  Workdir,
  differences,
  read_results,
  write_json,
)

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

  Left out and counted are chains without a known outcome, because their answer
  could not be compared in time, and those that the PRM cannot score.

  Raises:
    UserError: no chain has a known outcome, the selection kept in the workdir
      was made otherwise, or the PRM could score none of the chains.
  """
  checked = [chain for chain in chains if chain.outcome is not None]
  unchecked = {'unchecked': len(chains) - len(checked)}
  if not checked:
    raise UserError(
      f'none of {len(chains)} chains has a known outcome: active selection '
      'needs to know which answers are wrong; sample problems whose answers '
      'are known'
    )
  chains = checked
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
  del made_of['active']['batch_size']  # it changes no more than last digits
  kept = workdir.read_json(FILE)
  fits = kept.get('made_of') == made_of
  if kept and not fits and (workdir / 'data.json').exists():
    different = differences(made_of, kept.get('made_of') or {})
    how = f'with other settings ({", ".join(different)}) than this job has'
    if 'chains' in different:
      how = f'of other chains than {settings.chains.workdir!r} has now'
    raise UserError(
      f'{workdir / FILE} was made {how}; bring those back, or choose another '
      '--workdir'
    )
  processes.check_same(
    'what is selected from',
    json.dumps(made_of, sort_keys=True),
    'give all processes the same files',
  )
  if processes.exchange('selection', str(fits))[0] != str(True):
    step_scores = selection_scores.score_all(chains, settings, workdir)

    def write() -> None:
      made = make_selection(chains, step_scores, config)
      made['report'] |= unchecked
      write_json(workdir / FILE, {'made_of': made_of, **made})

    processes.first_alone('selection by one process', write)
  # That of process 0, as scores differ between machines. It is sent, as others
  # may not see the file yet.
  made = json.dumps(workdir.read_json(FILE)) if processes.is_first() else ''
  kept = json.loads(processes.broadcast('selected', made))
  return active.take(chains, kept['indices'], config), kept['report']


def make_selection(
  chains: Sequence[Chain],
  step_scores: Sequence[np.ndarray | None],
  config: active.ActiveConfig,
) -> dict[str, Any]:
  """Returns what FILE says of the selected chains.

  Args:
    step_scores: the scores of each chain; None if the PRM cannot score it.

  Raises:
    UserError: it can score none of them.
  """
  scored = {i: each for i, each in enumerate(step_scores) if each is not None}
  if not scored:
    raise UserError(
      f'the PRM can score none of {len(chains):,} chains: they do not fit its '
      'window, or hold what its tokenizer does not know; set prm to another'
    )
  positions = [*scored]
  selection, report = active.select(
    [chains[i] for i in positions], config, [*scored.values()]
  )
  unscored = [
    chain.meta['id'] for i, chain in enumerate(chains) if i not in scored
  ]
  return {
    'indices': [positions[i] for i in selection.indices],
    'scores': selection.scores,
    'unscored': unscored,
    'report': report._asdict() | {'unscored': len(unscored)},
  }


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

  Raises:
    UserError: both jobs are the same one, or `consensus` finds nothing to keep.
  """
  others = chain_sets.read(settings.agrees_with, 'agrees_with')
  ours, config = settings.chains, settings.consensus
  of_ours = ours.workdir if ours.kind == 'workdir' else ''
  theirs = paths.open_path(settings.agrees_with)
  if of_ours and paths.open_path(of_ours).resolve() == theirs.resolve():
    raise UserError(
      f'agrees_with={settings.agrees_with!r} is chains.workdir, and all labels '
      'agree with themselves; name another labelling job of the same chains'
    )
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
