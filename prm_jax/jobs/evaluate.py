"""Runs the evaluation job: any PRM, and the chains that it is judged by.

    dev and evaluation chains -> the PRM's step scores, kept as they come
      -> evals/prm.py -> WORKDIR: results.json, step_scores.jsonl, report

`main.py` runs it for `config.task = 'evaluate'`, in every process of the job.
`engine.py` runs and resumes its items: an item is a chain. So a PRM that takes
hours, such as one that writes critiques or is at a server, may be interrupted.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.evals import prm as prm_evaluation
from prm_jax.evals.prm import Evaluated, some_problems
from prm_jax.inference.driver import AskedModels, Work
from prm_jax.inference.generative_prm import UNKNOWN, GenerativePrm
from prm_jax.inference.protocols import Scoring, StepScorer
from prm_jax.jobs import engine, journal
from prm_jax.jobs.prm import show
from prm_jax.jobs.search import open_prm
from prm_jax.jobs.settings.evaluate import EvaluateSettings
from prm_jax.runtime import processes
from prm_jax.runtime.workdir import Workdir

Log = Callable[[str], None]
Key = tuple[str, tuple[str, ...]]  # problem and steps


def run(settings: EvaluateSettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  workdir.check_local('an evaluation job')
  dataset = load_dataset(settings.data, settings.seed, workdir.path, log)
  dataset = _chosen(dataset, settings)
  prm = open_prm(settings, workdir)
  asked = distinct(dataset)
  job = engine.ItemJob(
    name='scoring chains',
    kind='scores',
    about={'data_fingerprint': dataset.fingerprint, 'prm': prm.name},
    count=len(asked),
    start=lambda i: score(prm, *asked[i]),
    counts=lambda items: {'scored': len(items)},
    models=AskedModels(prm=prm),
  )
  about, records = engine.do_all(job, settings, workdir, log)
  written = records.read()
  ledger = engine.make_ledger(job, written, settings.price, workdir)
  known = {
    asked[i]: ended.chains[0].meta
    for i, ended in journal.latest(written).items()
  }
  found = judge(settings, dataset, known, log)
  about |= {
    'aggregate': settings.evaluation.aggregate,
    'threshold': found.threshold,
  }
  results: dict[str, Any] = found.results | {'cost': ledger | costs(known)}
  if isinstance(prm, GenerativePrm):
    warn_of_unread(results['cost'], prm.refusal, log)
  workdir.write_json('ledger.json', ledger)
  workdir.write_lines('step_scores.jsonl', found.step_scores)
  workdir.write_lines('chains.jsonl', found.shown)
  workdir.write_json('results.json', {'manifest': about, 'results': results})
  processes.first_alone('report', show, results, workdir, log)


def distinct(dataset: Dataset) -> list[Key]:
  """Returns all chains to score, each once."""
  sets = (dataset.dev, *dataset.evaluations.values())
  keys = ((chain.problem, chain.steps) for chains in sets for chain in chains)
  return list(dict.fromkeys(keys))


def judge(
  settings: EvaluateSettings,
  dataset: Dataset,
  known: Mapping[Key, Mapping[str, Any]],
  log: Log,
) -> Evaluated:
  """Judges the scores that are known, and adds critiques to shown chains."""

  def score_all(chains: Sequence[Chain]) -> list[np.ndarray]:
    return [
      np.asarray(known[chain.problem, chain.steps]['scores'], np.float32)
      for chain in chains
    ]

  found = prm_evaluation.evaluate(
    settings.evaluation,
    settings.targets,
    dataset,
    score_all,
    None,
    settings.seed,
    log,
  )
  for record in found.shown:
    meta = known[record['problem'], tuple(record['steps'])]
    record['critiques'] = [*map(''.join, meta.get('critiques', []))]
  return found


def costs(known: Mapping[Key, Mapping[str, Any]]) -> dict[str, float]:
  """Returns what scoring each distinct chain once took."""
  return {
    'flops': sum(meta['flops'] for meta in known.values()),
    'unread_critiques': sum(meta.get('unread', 0) for meta in known.values()),
  }


def warn_of_unread(cost: Mapping[str, Any], refusal: str, log: Log) -> None:
  """Says how many critiques say nothing.

  Args:
    refusal: why the critic could not be asked some questions; '' if it could.
  """
  if cost['unread_critiques']:
    why = f' ({refusal})' if refusal else ''
    log(
      f'WARNING: {cost["unread_critiques"]:,} critiques have no readable '
      f'verdict, or could not be given{why}; each counts as {UNKNOWN}'
    )


def _chosen(dataset: Dataset, settings: EvaluateSettings) -> Dataset:
  """Keeps the dev chains and evaluations that the settings name."""
  wanted = settings.evaluation
  return dataclasses.replace(
    dataset,
    dev=some_problems(dataset.dev, wanted.max_dev_problems),
    evaluations={
      name: some_problems(chains, wanted.max_problems)
      for name, chains in dataset.evaluations.items()
    },
  )


def score(prm: StepScorer, problem: str, steps: tuple[str, ...]) -> Work:
  """Asks for the scores of one chain, which `meta['scores']` then has.

  Steps that do not fit the PRM's window have none. `meta['critiques']` has what
  a critic wrote.
  """
  ([scored],) = yield [Scoring(problem, steps)]
  meta: dict[str, Any] = {'scores': list(scored.scores), 'flops': scored.flops}
  if isinstance(prm, GenerativePrm):
    opinions = prm.opinions(problem, steps)
    meta['critiques'] = [said.critiques[:1] for said in opinions]
    meta['unread'] = sum(said.unread for said in opinions)
  return [Chain(problem, steps, meta=meta)]
