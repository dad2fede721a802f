"""Runs the labelling job: chains in, the same chains with step labels out.

    chains -> selection, if one is named -> source -> WORKDIR/data

`main.py` runs it for `config.task = 'label'`, in every process of the job.
`engine.py` runs and resumes its items: an item is a chain. `labels/` has the
sources.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prm_jax.data import builder, chain_sets
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import data_root, folder_aside, read_file
from prm_jax.data.domain_splits import drawn_splits
from prm_jax.data.domains.known import DOMAINS
from prm_jax.inference.driver import AskedModels, Ended, Work
from prm_jax.inference.protocols import Policy
from prm_jax.inference.server.endpoint import Endpoint
from prm_jax.jobs import engine, policies, selections
from prm_jax.jobs.settings.items import SOURCES, ChainsConfig, LabelSettings
from prm_jax.labels import corruption, judge, omega, rollouts, verifier
from prm_jax.labels.labelling import Labelling, as_work
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir

Log = Callable[[str], None]


def run(settings: LabelSettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  workdir.check_local('a labelling job')
  source = settings.source
  model = open_model(settings, workdir)
  chains = read_all(settings.chains, settings.seed, workdir, log)
  selected = {}
  if settings.select:
    chains, report = selections.select(chains, settings, workdir)
    selected = {settings.select: report}
    log(f'{settings.select}: {json.dumps(report)}')
  label, config = LABELLERS[source], settings.source_config
  asked = AskedModels(policy=model)
  if SOURCES[source] == 'judges':
    asked = AskedModels(judge=model)
  job = engine.ItemJob(
    name=f'labels by {source}',
    kind='labels',
    about={
      'data_fingerprint': builder.fingerprint(chains),
      'source': source,
      'policy': model.name if model else '',
    },
    count=len(chains),
    start=lambda i: label(chains[i], config),
    counts=lambda items: (
      {'chains': len(chains)} | count_labels(items, source) | selected
    ),
    models=asked,
  )
  engine.run(job, settings, workdir, log)


def keep_labels(chain: Chain, config: None) -> Labelling:
  """Returns the chain with the labels that it already has."""
  del config
  yield from ()
  return chain


def label_alone(
  label: Callable[[Chain, Any], Labelling],
) -> Callable[[Chain, Any], Work]:
  """Makes an item's work of a source that labels one chain and adds none."""
  return lambda chain, config: as_work(label(chain, config))


def label_by_omega(chain: Chain, config: omega.OmegaConfig) -> Work:
  """Labels a chain by OmegaPRM, and adds the labelled chains of its tree."""
  if not config.searches:  # a right chain costs nothing then
    return as_work(omega.label(chain, config))
  return omega.label_tree(chain, config)


# The work of one chain, from the chain and the settings of the source.
LABELLERS: dict[str, Callable[[Chain, Any], Work]] = {
  'verifier': label_alone(verifier.label),
  'rollouts': label_alone(rollouts.label),
  'omega': label_by_omega,
  'judge': label_alone(judge.label),
  'corruption': label_alone(corruption.label),
  'given': label_alone(keep_labels),
}


def open_model(settings: LabelSettings, workdir: Workdir) -> Policy | None:
  """Opens the policy or judge of the source; None if it needs none.

  Raises:
    UserError: it cannot be opened, or is a server that may restart a chain
      instead of continuing its steps.
  """
  if not (use := SOURCES[settings.source]):
    return None
  model = policies.open_policy(settings, workdir)
  if use == 'writes new chains' and isinstance(model, Endpoint):
    model.check_continues()
  return model


def read_all(
  config: ChainsConfig, seed: int, workdir: Workdir, log: Log
) -> list[Chain]:
  """Reads the chains that a config names; no two have the same `meta['id']`.

  Sources seed their random draws with this id.

  Args:
    seed: seed of the chains drawn from a domain.

  Raises:
    UserError: there are none, or they cannot be read.
  """
  if config.kind in DOMAINS:
    chains = drawn_splits(config.kind, config, config.samples, seed).train
  elif config.kind == 'workdir':
    chains = chain_sets.read(config.workdir, 'chains.workdir')
  else:
    root = data_root(config.root, 'chains.root')
    with folder_aside(workdir.path) as aside:
      chains = [
        chain
        for path, fmt in config.files
        for chain in read_file(root, path, fmt, config.on_error, aside, log)
      ]
  if not chains:
    raise UserError('there are no chains to label; name some in chains.files')
  return with_distinct_ids(chains)


def with_distinct_ids(chains: Sequence[Chain]) -> list[Chain]:
  """Makes ids unique: of chains with the same id, later ones get numbers."""
  taken = {chain.meta['id'] for chain in chains}
  seen: set[str] = set()
  numbers: Counter[str] = Counter()
  distinct = []
  for chain in chains:
    name = unique = chain.meta['id']
    if name in seen:
      # A numbered name may be another chain's own.
      while unique in taken:
        numbers[name] += 1
        unique = f'{name} ({numbers[name] + 1})'
      taken.add(unique)
    seen.add(name)
    meta = {**chain.meta, 'id': unique}
    distinct.append(dataclasses.replace(chain, meta=meta))
  return distinct


def count_labels(items: Mapping[int, Ended], source: str) -> dict[str, int]:
  """Returns the ledger's counts of labelled chains."""
  labelled = [chain for ended in items.values() for chain in ended.chains]
  values = [step.value for chain in labelled for step in chain.labels]
  counts = {
    'labelled': len(labelled),
    'labels': sum(value is not None for value in values),
  }
  if SOURCES[source] == 'writes new chains':
    tallies = [chain.meta.get('rollouts', {}) for chain in labelled]
    for name in rollouts.tally(()):
      counts[f'{name}_rollouts'] = sum(tally.get(name, 0) for tally in tallies)
  return counts
