"""The labelling job: chains in, the same chains with step labels out.

    chains -> selection, where one is named -> source -> WORKDIR/data

What `main.py` runs for `config.task = 'label'`, in every process of the job.
`jobs/engine.py` runs and resumes it; here stands where chains come from, and
by name who labels them.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax.data import builder, chain_sets
from prm_jax.data.chains import Chain
from prm_jax.data.datasets import (
  arithmetic_splits,
  data_root,
  folder_aside,
  read_file,
)
from prm_jax.inference.driver import Ended, Models, Work
from prm_jax.inference.server.endpoint import Endpoint
from prm_jax.jobs import engine, policies
from prm_jax.jobs.selections import SELECTIONS
from prm_jax.labels import corruption, judge, omega, rollouts, verifier
from prm_jax.labels.labelling import Labelling, alone
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class GivenConfig:
  """Nothing is to be said of labels that are there."""


def given(chain: Chain, config: GivenConfig) -> Labelling:
  """The labels that a chain comes with."""
  del config
  yield from ()
  return chain


class Source(NamedTuple):
  """How chains are labelled.

  Attributes:
    work: of one chain; most give it back with labels, alone.
    config: of the values of its section.
    asks: 'policy', 'judge' or '' for nobody.
  """

  work: Callable[[Chain, Any], Work]
  config: type
  asks: str = ''


def each(
  label: Callable[[Chain, Any], Labelling],
) -> Callable[[Chain, Any], Work]:
  """The work of a source that labels a chain and makes no others."""
  return lambda chain, config: alone(label(chain, config))


def search(chain: Chain, config: omega.OmegaConfig) -> Work:
  """OmegaPRM: the chain, and those that its tree adds where one is wanted."""
  if not config.searches:  # a right chain costs nothing then
    return alone(omega.label(chain, config))
  return omega.tree(chain, config)


SOURCES = {
  'verifier': Source(each(verifier.label), verifier.VerifierConfig),
  'rollouts': Source(each(rollouts.label), rollouts.RolloutConfig, 'policy'),
  'omega': Source(search, omega.OmegaConfig, 'policy'),
  'judge': Source(each(judge.label), judge.JudgeConfig, 'judge'),
  'corruption': Source(each(corruption.label), corruption.CorruptionConfig),
  'given': Source(each(given), GivenConfig),
}
CHAINS = ('arithmetic', 'files', 'workdir')


def check(config: Mapping[str, Any]) -> None:
  """Raises UserError for all that can be seen before anything is read."""
  engine.check(config)
  chains = config['chains']
  for name, value, choices in (
    ('source', config['source'], SOURCES),
    ('select', config['select'], ('', *SELECTIONS)),
    ('chains.kind', chains['kind'], CHAINS),
  ):
    if value not in choices:
      shown = ', '.join(choice or "''" for choice in choices)
      raise UserError(f'{name}={value!r}: expected one of {shown}')
  if asks := SOURCES[config['source']].asks:
    policies.check(config['policy'], asks)


def read_all(
  config: Mapping[str, Any], seed: int, workdir: paths.Path, log: Log
) -> list[Chain]:
  """The chains that a config names.

  Sources draw by `meta['id']`: no two chains have the same.

  Args:
    config: the chains section.
    seed: of what the arithmetic domain draws.
  """
  if config['kind'] == 'arithmetic':
    chains = arithmetic_splits(config, seed).train
  elif config['kind'] == 'workdir':
    chains = chain_sets.read(config['workdir'], 'chains.workdir')
  else:
    root = data_root(config['root'], 'chains.root')
    with folder_aside(workdir) as aside:
      chains = [
        chain
        for path, fmt in config['files']
        for chain in read_file(root, path, fmt, config['on_error'], aside, log)
      ]
  if not chains:
    raise UserError('there are no chains to label; name some in chains.files')
  return with_distinct_ids(chains)


def with_distinct_ids(chains: Sequence[Chain]) -> list[Chain]:
  """The chains; a number after all but the first of those with one id."""
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


def run(config: Mapping[str, Any], workdir: paths.Path, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  check(config)
  paths.check_local(workdir, 'the workdir of a labelling job')
  name, seed = config['source'], config['seed']
  source = SOURCES[name]
  settings = source.config(**config.get(name, {}))
  # A server is both a policy and a judge.
  asked = None
  if source.asks:
    asked = policies.open_policy(config['policy'], seed, workdir)
  if source.asks == 'policy' and isinstance(asked, Endpoint):
    # Before the workdir is this config's own.
    asked.check_goes_on()
  chains = read_all(config['chains'], seed, workdir, log)
  selected = {}
  if config['select']:
    chains, report = SELECTIONS[config['select']](chains, config, workdir)
    selected = {config['select']: report}
    log(f'{config["select"]}: {json.dumps(report)}')

  def counts(items: Mapping[int, Ended]) -> dict[str, Any]:
    labelled = [chain for ended in items.values() for chain in ended.chains]
    values = [step.value for chain in labelled for step in chain.labels]
    cut = {}
    if source.asks == 'policy':
      tallies = [chain.meta.get('rollouts', {}) for chain in labelled]
      cut = {
        f'{name}_rollouts': sum(tally.get(name, 0) for tally in tallies)
        for name in rollouts.tally(())
      }
    return {
      'chains': len(chains),
      'labelled': len(labelled),
      'labels': sum(value is not None for value in values),
      **cut,
      **selected,
    }

  job = engine.Job(
    name=f'labels by {name}',
    kind='labels',
    about={
      'data_fingerprint': builder.fingerprint(chains),
      'source': name,
      'policy': asked.name if asked else '',
    },
    count=len(chains),
    start=lambda i: source.work(chains[i], settings),
    counts=counts,
    at_once=policies.at_once(config['policy']),
    models=Models(**({source.asks: asked} if source.asks else {})),
  )
  engine.run(job, config, workdir, log)
