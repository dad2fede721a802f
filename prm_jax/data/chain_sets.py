"""The chains that a job leaves in its workdir, for the jobs after it.

Sampling and labelling end here; labelling and training begin here:

    write(workdir, kind, chains) -> WORKDIR/data, WORKDIR/chains.jsonl, and the
      entry for results.json
    read(workdir) -> the same chains
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
  """Writes the chains as ArrayRecord, and as JSON lines for people.

  Args:
    kind: what they are, 'samples' or 'labels'.

  Returns:
    What `results.json` has to hold as `dataset`.
  """
  fingerprint = builder.fingerprint(chains)
  # By its content: what failed and succeeds later makes another one.
  name = f'{kind}_{fingerprint}'
  builder.build(workdir / 'data', name, {SPLIT: chains})
  lines = (
    json.dumps(chains_lib.to_dict(chain), ensure_ascii=False) + '\n'
    for chain in chains
  )
  paths.write_text(workdir / 'chains.jsonl', ''.join(lines))
  return {'name': name, 'fingerprint': fingerprint}


def read(workdir: str, flag: str) -> builder.ChainSource:
  """The chains of a job that is done.

  Args:
    workdir: of a sampling or labelling job.
    flag: what names it, for what may be wrong with it.

  Raises:
    UserError: no such job ended there.
  """
  paths.check_local(workdir, f'what {flag} names')
  folder = paths.open_path(workdir).expanduser()
  try:
    name = read_results(folder)['dataset']['name']
  except (LookupError, TypeError):
    raise UserError(
      f'{flag}={workdir!r} holds no results.json with chains; name the '
      '--workdir of a sampling or labelling job that is done'
    ) from None
  return builder.load(folder / 'data', name, SPLIT)
