"""Passes chains from one job to the next through the workdir.

Sampling, labelling, search and evaluation jobs write their chains here. Other
jobs label, train on, compare or replay those of sampling and labelling jobs:

    write(workdir, kind, chains) -> WORKDIR/data, WORKDIR/chains.jsonl, and the
      entry for results.json
    read(workdir, flag) -> the same chains
"""

import json
from collections.abc import Sequence

from prm_jax.data import builder
from prm_jax.data import chains as chains_lib
from prm_jax.data.chains import Chain
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import read_results

SPLIT = 'train'


def write(
  workdir: paths.Path, kind: str, chains: Sequence[Chain]
) -> dict[str, str]:
  """Writes the chains as ArrayRecord, and as JSON lines for people to read.

  Args:
    workdir: folder of the job that made the chains.
    kind: `ItemJob.kind`: 'samples', 'labels', 'search' or 'scores'; part of the
      dataset name.
    chains: the chains; at least one.

  Returns:
    The entry that the job stores under `dataset` in results.json.
  """
  fingerprint = builder.fingerprint(chains)
  # The fingerprint is part of the name, because a job that is run again after
  # some requests failed may write more chains than the first time.
  name = f'{kind}_{fingerprint}'
  builder.build(workdir / 'data', name, {SPLIT: chains})
  lines = (
    json.dumps(chains_lib.to_dict(chain), ensure_ascii=False) + '\n'
    for chain in chains
  )
  paths.write_text(workdir / 'chains.jsonl', ''.join(lines))
  return {'name': name, 'fingerprint': fingerprint}


def read(workdir: str, flag: str) -> builder.ChainSource:
  """Opens the chains of a finished job.

  Args:
    workdir: folder of a sampling or labelling job.
    flag: the flag that named the folder; error messages mention it.

  Raises:
    UserError: the folder holds no finished job with chains.
  """
  paths.check_local(workdir, f'what {flag} names')
  folder = paths.open_path(workdir)
  try:
    name = read_results(folder)['dataset']['name']
    if not (name.isascii() and name.isidentifier()):
      raise LookupError(name)
  except (LookupError, TypeError, AttributeError):
    raise UserError(
      f'{flag}={workdir!r} holds no results.json with chains; name the '
      '--workdir of a sampling or labelling job that is done'
    ) from None
  return builder.load(folder / 'data', name, SPLIT)
