"""Which chains a labelling job labels, by the names of its config.

`jobs/label.py` has read the chains; what is selected of them goes on to a label
source. What a PRM selected is kept, as no two machines agree on the last digit
of a score: a job that goes on labels the chains that it began with.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.data import builder, chain_sets
from prm_jax.data.chains import Chain
from prm_jax.inference import loading
from prm_jax.labels import active, consensus
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE, read_results, write_json

FILE = 'selection.json'
Selected = tuple[list[Chain], dict[str, Any]]


def by_active(
  chains: Sequence[Chain], config: Mapping[str, Any], workdir: pathlib.Path
) -> Selected:
  """The most convincing wrong answers; see `labels/active.py`.

  A PRM's choice stands in selection.json, with the scores. Chains whose outcome
  is not known, as answers could not be compared in time, are left out.

  Raises:
    UserError: no PRM is named, or the selection that a job began with is of
      other chains.
  """
  wanted = active.ActiveConfig(**config['active'])
  checked = [chain for chain in chains if chain.outcome is not None]
  unchecked = {'unchecked': len(chains) - len(checked)}
  chains = checked or chains  # of none at all, `active` says what is wrong
  if wanted.method != 'active':
    selection, report = active.select(chains, wanted, None)
    taken = active.take(chains, selection.indices, wanted)
    return taken, report._asdict() | unchecked
  if not config['prm']:
    raise UserError(
      "select='active' scores chains with a PRM; name it with --config.prm"
    )
  values = config['active']
  made_of = {
    'chains': builder.fingerprint(chains),
    'prm': config['prm'],
    'active': {name: values[name] for name in values if name != 'batch_size'},
  }
  path = workdir / FILE
  there = paths.read_json(path, DELETE) if path.exists() else {}
  fits = there.get('made_of') == made_of
  if there and not fits and (workdir / 'data.json').exists():
    raise UserError(
      f'{path} was made of other chains than {config["chains"]["workdir"]!r} '
      'has now; bring those back, or choose another --workdir'
    )
  # All processes have to score, as the model may be spread over them.
  if processes.exchange('selection', str(fits))[0] != str(True):
    scorer = loading.load(config['prm'])
    selection, report = active.select(chains, wanted, scorer)
    found = {
      'made_of': made_of,
      'indices': selection.indices,
      'scores': selection.scores,
      'report': report._asdict() | unchecked,
    }
    processes.first_alone('select', lambda: write_json(path, found))
  there = paths.read_json(path, DELETE)
  return active.take(chains, there['indices'], wanted), there['report']


def by_consensus(
  chains: Sequence[Chain], config: Mapping[str, Any], workdir: pathlib.Path
) -> Selected:
  """Those that another labelling job agrees on; see `labels/consensus.py`."""
  del workdir
  others = chain_sets.read(config['agrees_with'], 'agrees_with')
  given = dict(config['consensus'])
  ours = config['chains']
  of_ours = ours['workdir'] if ours['kind'] == 'workdir' else ''
  first = given['first'] or source_of(of_ours, 'first')
  second = given['second'] or source_of(config['agrees_with'], 'second')
  if second == first and not given['second']:
    second += ' of agrees_with'  # of another policy, or with other settings
  wanted = given | {'first': first, 'second': second}
  kept, report = consensus.consensus(
    chains, others, consensus.ConsensusConfig(**wanted)
  )
  told = {
    name: {**each._asdict(), 'share': each.share}
    for name, each in report._asdict().items()
    if name != 'unpaired'
  }
  return kept, told | {'unpaired': report.unpaired}


def source_of(workdir: str, unknown: str) -> str:
  """Who labelled the chains of a job; what is unknown where nobody says.

  Args:
    workdir: of the job; '' where the chains are of none.
  """
  if not workdir:
    return unknown
  folder = paths.open_path(workdir).expanduser()
  about = read_results(folder).get('manifest', {})
  return about.get('source', unknown)


SELECTIONS = {'active': by_active, 'consensus': by_consensus}
