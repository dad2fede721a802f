"""Ten chains to label by rollouts, as a job that tests hand the engine."""

import dataclasses
import json

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import AskedModels, CannotDo
from prm_jax.jobs import engine
from prm_jax.jobs.settings.items import LabelSettings
from prm_jax.labels import rollouts
from prm_jax.labels.labelling import as_work
from prm_jax.runtime.workdir import Workdir
from tests.shared.counting_policy import PROBLEMS

CHAINS = [
  Chain(problem, ('0 + 4 = 4', '4 * 1 = 4', '4 - 7 = 7'), meta={'id': str(i)})
  for i, problem in enumerate(PROBLEMS)
]
SETTINGS = LabelSettings(name='Labels', concurrent=3)


def label(chain):
  """Labels by two rollouts a step, and wants every answer."""
  labelled = yield from rollouts.label(chain, rollouts.RolloutConfig(2))
  if any(step.trials == 0 for step in labelled.labels):
    raise CannotDo('some rollouts could not be had')
  if chain.meta['id'] == '3':
    raise CannotDo('it is the fourth')
  return labelled


def run(folder, policy, settings=SETTINGS, **changes):
  """Runs the job.

  Args:
    changes: fields of `ItemJob` that differ.

  Returns:
    The dataset and the ledger without its seconds, and the lines of the log.
  """
  job = engine.ItemJob(
    name='labels',
    kind='labels',
    about={'data_fingerprint': 'd', 'policy': policy.name},
    count=len(CHAINS),
    start=lambda i: as_work(label(CHAINS[i])),
    counts=lambda items: {
      'labelled': sum(not ended.failed for ended in items.values())
    },
    models=AskedModels(policy=policy),
  )
  lines = []
  workdir = Workdir.open(str(folder), dataclasses.asdict(settings), {})
  engine.run(job._replace(**changes), settings, workdir, lines.append)
  ledger = json.loads((folder / 'ledger.json').read_text())
  results = json.loads((folder / 'results.json').read_text())
  assert results['results'] == ledger
  del ledger['seconds']
  return results['dataset'], ledger, lines
