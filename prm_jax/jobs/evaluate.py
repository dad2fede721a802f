"""Runs the evaluation job: any PRM, and the chains that it is judged by.

    dev and evaluation chains -> the PRM's step scores, kept as they come
      -> evals/prm.py -> WORKDIR: results.json, step_scores.jsonl, report

`main.py` runs it for `config.task = 'evaluate'`, in every process of the job.
`engine.py` runs and resumes its items: an item is a chain. So a PRM that takes
hours, such as one that writes critiques or is at a server, may be interrupted.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.datasets import Dataset, load_dataset
from prm_jax.data.segments import score_pieces, split_chain, split_step
from prm_jax.evals import prm as prm_evaluation
from prm_jax.evals.enough_data import check_data
from prm_jax.evals.prm import Evaluated, headline_aggregate, some_problems
from prm_jax.inference.driver import AskedModels, CannotDo, Ended, Work
from prm_jax.inference.generative_prm import UNKNOWN, GenerativePrm
from prm_jax.inference.protocols import ScoredSteps, Scoring, StepScorer
from prm_jax.jobs import engine, journal
from prm_jax.jobs.learned import check_outcome_model, check_unseen
from prm_jax.jobs.prm import check_votes, show
from prm_jax.jobs.prms import open_prm
from prm_jax.jobs.settings.evaluate import EvaluateSettings
from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import Workdir

Log = Callable[[str], None]
Key = tuple[str, tuple[str, ...]]  # problem and steps


def run(settings: EvaluateSettings, workdir: Workdir, log: Log) -> None:
  """Runs or resumes the whole job; every output is in `workdir`."""
  workdir.check_local('an evaluation job')
  check_votes(settings.evaluation, settings.data.kind)
  dataset = load_dataset(settings.data, settings.seed, workdir.path, log)
  if settings.of_steps:
    check_outcome_model(settings.judged)
  else:
    dataset = dataclasses.replace(dataset, dev=())
  check_data(settings.evaluation, settings.targets, dataset)
  asked = to_score(dataset, settings)
  problems = list(dict.fromkeys(problem for problem, _ in asked))
  check_unseen(problems, settings.judged, settings.data.kind)
  prm = open_prm(settings, settings.data.arithmetic, workdir)
  job = engine.ItemJob(
    name='scoring chains',
    kind='scores',
    about={'data_fingerprint': dataset.fingerprint, 'prm': prm.name},
    count=len(asked),
    start=lambda i: score(prm, *asked[i]),
    counts=count_scored,
    models=AskedModels(prm=prm),
  )
  about, records = engine.do_all(job, settings, workdir, log)
  written = records.read()
  ledger = engine.make_ledger(job, written, settings.price, workdir)
  workdir.write_json('ledger.json', ledger)
  known = read_scores(asked, journal.latest(written))
  found = judge(settings, dataset, known, log)
  about |= {
    'aggregate': headline_aggregate(settings.evaluation, settings.targets),
    'threshold': found.threshold,
  }
  results: dict[str, Any] = found.results | {'cost': ledger | costs(known)}
  if isinstance(prm, GenerativePrm):
    warn_of_unread(results['cost'], prm.refusal, log)
  workdir.write_lines('step_scores.jsonl', found.step_scores)
  workdir.write_lines('chains.jsonl', found.shown)
  workdir.write_results(about, results)
  processes.first_alone('report', show, results, workdir, log)


def count_scored(items: Mapping[int, Ended]) -> dict[str, int]:
  """Returns the ledger's count of chains that have scores."""
  return {'scored': sum(not ended.failed for ended in items.values())}


def to_score(dataset: Dataset, settings: EvaluateSettings) -> list[Key]:
  """Returns all chains to score, each once, their steps as they are split."""
  wanted, how = settings.evaluation, settings.data.segments
  sets = [some_problems(dataset.dev, wanted.max_dev_problems)]
  limit = wanted.max_problems
  sets += [some_problems(it, limit) for it in dataset.evaluations.values()]
  pieces = (split_chain(chain, how) for chains in sets for chain in chains)
  return list(dict.fromkeys((chain.problem, chain.steps) for chain in pieces))


def read_scores(
  asked: Sequence[Key], items: Mapping[int, Ended]
) -> dict[Key, Mapping[str, Any]]:
  """Returns what is known of each chain.

  Raises:
    UserError: some chains lack their scores.
  """
  failed = [ended.failed for ended in items.values() if ended.failed]
  if failed:
    raise UserError(
      f'{len(failed):,} of {len(asked):,} chains have no scores ({failed[0]}); '
      'the same command tries again'
    )
  if len(items) < len(asked):
    raise UserError(
      f'{len(items):,} of {len(asked):,} chains are in the journals that this '
      'process sees; run the same command again'
    )
  return {asked[i]: ended.chains[0].meta for i, ended in items.items()}


def judge(
  settings: EvaluateSettings,
  dataset: Dataset,
  known: Mapping[Key, Mapping[str, Any]],
  log: Log,
) -> Evaluated:
  """Judges the scores that are known, and adds critiques to shown chains."""

  def score_all(chains: Sequence[Chain]) -> list[np.ndarray]:
    found = (known[chain.problem, chain.steps]['scores'] for chain in chains)
    return [np.array(scores, np.float32) for scores in found]  # None is NaN

  outcomes = not settings.of_steps
  found = prm_evaluation.evaluate(
    settings.evaluation,
    settings.targets,
    dataset,
    score_pieces(score_all, settings.data.segments, last=outcomes),
    None,
    settings.seed,
    log,
  )
  for record in found.shown:
    record['critiques'] = critiques_of(record, known, settings.data.segments)
  return found


def critiques_of(
  record: Mapping[str, Any], known: Mapping[Key, Mapping[str, Any]], how: str
) -> list[str]:
  """Returns the critiques of a chain: of each step, of all of it, or none.

  Args:
    record: the chain, its steps as they are.
    how: how steps were split for scoring; a step gets its pieces' critiques.
  """
  pieces = [split_step(step, how) for step in record['steps']]
  scored = tuple(itertools.chain(*pieces))
  meta = known.get((record['problem'], scored), {})
  said = [*map(''.join, meta.get('critiques', []))]
  if len(said) != len(scored):
    return said
  left = iter(said)
  return [
    '\n'.join(filter(None, itertools.islice(left, len(own)))) for own in pieces
  ]


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


def score(prm: StepScorer, problem: str, steps: tuple[str, ...]) -> Work:
  """Asks for the scores of one chain, which `meta['scores']` then has.

  If the chain does not fit the PRM's window, its first steps that do are
  scored. A score is None where the PRM's arithmetic overflows.
  `meta['critiques']` has what a critic wrote.

  Raises:
    CannotDo: critiques could not be had.
  """
  fits, least, most = ScoredSteps((), 0), 0, len(steps)
  length, flops = most, 0.0
  while least < most:
    ([scored],) = yield [Scoring(problem, steps[:length])]
    if scored.lost:
      raise CannotDo(f'{scored.lost} critiques could not be had')
    # What an earlier reading has read, a later one does not count again.
    flops += scored.flops
    if scored.scores:
      fits, least = scored, length
    else:
      most = length - 1
    length = (least + most + 1) // 2
  meta: dict[str, Any] = {
    'scores': [s if np.isfinite(s) else None for s in fits.scores],
    'flops': flops,
    'unread': fits.unread,
  }
  if isinstance(prm, GenerativePrm):
    opinions = prm.opinions(problem, steps)
    meta['critiques'] = [said.critiques[:1] for said in opinions]
  return [Chain(problem, steps, meta=meta)]
