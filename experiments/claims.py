"""What the literature claims, what was found here, and whether it holds.

    python -m experiments.claims

Reads the results.json of every experiment and fills the table of README.md
beside this file. A verdict follows from the numbers by the rule of its claim.
"""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import ablations
from experiments.label_sources.run import ACTIVE
from experiments.label_sources.tables import efficiency
from experiments.rl_process_vs_outcome.tables import ENDS
from prm_jax.report import readme_table

HERE = pathlib.Path(__file__).parent
HOLDS, PARTLY, FAILS = 'holds', 'partly', 'fails'


class Found(NamedTuple):
  """Our side of a claim.

  Attributes:
    number: with its unit.
    interval: 95%, or each seed, as it says.
    holds: of each case the claim is asked of.
  """

  number: str
  interval: str
  holds: Sequence[bool]

  @property
  def verdict(self) -> str:
    return HOLDS if all(self.holds) else PARTLY if any(self.holds) else FAILS


Finder = Callable[[Mapping[str, Any]], Found]


class Claim(NamedTuple):
  """A claim, and how an experiment's results answer it."""

  folder: str
  text: str
  literature: str
  find: Finder
  results: str = 'results.json'


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def between(ci95: Sequence[float]) -> str:
  return ' to '.join(percent(bound) for bound in ci95)


def mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)


def steps_beat_answers(document: Mapping[str, Any]) -> Found:
  runs = [run['best_of_n'] for run in document['results'].values()]
  prm, orm = (
    [run[name]['mean'][-1] for run in runs] for name in ('prm_min', 'orm')
  )
  gaps = [
    f'{percent(a)} to {percent(b)}' for a, b in zip(prm, orm, strict=True)
  ]
  return Found(
    f'{percent(mean(prm))} to {percent(mean(orm))} at N = {runs[0]["n"][-1]}',
    f'each seed: {", ".join(gaps)}',
    [run['prm_min']['ci95'][-1][0] > run['orm']['ci95'][-1][1] for run in runs],
  )


def votes_do_not_help(document: Mapping[str, Any]) -> Found:
  runs = [run['best_of_n'] for run in document['results'].values()]
  first, last = ([run['majority']['mean'][k] for run in runs] for k in (0, -1))
  return Found(
    f'{percent(mean(first))} to {percent(mean(last))}',
    'each seed: '
    + ', '.join(
      f'{percent(a)} to {percent(b)}' for a, b in zip(first, last, strict=True)
    ),
    [
      run['majority']['ci95'][-1][0] <= run['majority']['mean'][0]
      for run in runs
    ],
  )


def human_labels_teach(document: Mapping[str, Any]) -> Found:
  sets = document['results']['localisation']
  return Found(
    '; '.join(f'{percent(x["f1"])} ({name})' for name, x in sets.items()),
    '; '.join(between(x['ci95']) for x in sets.values()),
    [x['ci95'][0] > x['baselines']['random']['f1'] for x in sets.values()],
  )


def training_beats_likelihood(document: Mapping[str, Any]) -> Found:
  sets = document['results']['localisation']
  leads = {
    name: rows['likelihood']['minus_digit_likelihood']
    for name, rows in sets.items()
  }
  return Found(
    '; '.join(f'{100 * x["difference"]:+.1f} ({k})' for k, x in leads.items()),
    '; '.join(
      ' to '.join(f'{100 * bound:+.1f}' for bound in x['ci95'])
      for x in leads.values()
    ),
    [x['ci95'][0] > 0 for x in leads.values()],
  )


def hard_beats_soft(document: Mapping[str, Any]) -> Found:
  hard, soft = (
    [
      run[f'equal chains: rollouts, {kind}']['localisation']
      for run in document['runs'].values()
    ]
    for kind in ('threshold 0', 'soft')
  )
  return Found(
    ' to '.join(
      percent(mean([x['f1'] for x in side])) for side in (hard, soft)
    ),
    'each seed: '
    + ', '.join(
      f'{percent(a["f1"])} to {percent(b["f1"])}'
      for a, b in zip(hard, soft, strict=True)
    ),
    [a['ci95'][0] > b['ci95'][1] for a, b in zip(hard, soft, strict=True)],
  )


def consensus_is_cleaner(document: Mapping[str, Any]) -> Found:
  both, one, other = (
    [labels[name]['accuracy'] for labels in document['labels'].values()]
    for name in (
      'consensus',
      'rollouts, threshold 0',
      'rollouts by another completer, threshold 0',
    )
  )
  return Found(
    f'{percent(mean(both))} to {percent(mean(one))} and {percent(mean(other))}',
    f'each seed: {", ".join(map(percent, both))}',
    [a > max(b, c) for a, b, c in zip(both, one, other, strict=True)],
  )


def active_selection(document: Mapping[str, Any]) -> Found:
  found = [
    efficiency(runs, ACTIVE['budgets'], 'F1')
    for runs in document['runs'].values()
  ]
  known = [x for x in found if x is not None]
  return Found(
    f'{mean(known):.2f}x',
    'each seed: '
    + ', '.join('none' if x is None else f'{x:.2f}' for x in found),
    [x is not None and x > 1 for x in found],
  )


def best_aggregate(
  labels: str, best: Sequence[str], others: Sequence[str]
) -> Finder:
  """Whether some aggregates of step scores are above others, each seed."""

  def find(document: Mapping[str, Any]) -> Found:
    runs = [
      run[f'equal chains: {labels}']['best_of_64']
      for run in document['runs'].values()
    ]
    means = {
      how: [run[f'prm_{how}']['mean'] for run in runs]
      for how in (*best, *others)
    }
    return Found(
      '; '.join(
        f'{percent(mean(each))} ({how})' for how, each in means.items()
      ),
      f'each seed, {best[0]}: {", ".join(map(percent, means[best[0]]))}',
      [
        min(means[how][k] for how in best)
        > max(means[how][k] for how in others)
        for k in range(len(runs))
      ],
    )

  return find


def little_compute(document: Mapping[str, Any]) -> Found:
  """Beam's compute for what best of 64 reaches, by operations."""
  found = {}
  for k, results in document['results'].items():
    (asked,) = (
      each
      for each in results['times_less']
      if (each['method'], each['size']) == ('best of N, PRM', 64)
    )
    found[k] = asked['ours']['beam']
  return Found(
    '; '.join(f'{x["ratio"]:.1f}x ({k} operations)' for k, x in found.items()),
    '; '.join(
      ' to '.join(f'{bound:.1f}' for bound in x['ci95']) for x in found.values()
    ),
    [x['ratio'] >= 5 for x in found.values()],
  )


def beam_with_4(document: Mapping[str, Any]) -> Found:
  found = {
    k: results['differences']['beam with 4 and best of 16 by PRM']
    for k, results in document['results'].items()
  }
  return Found(
    '; '.join(
      f'{100 * x["mean"]:+.1f} ({k} operations)' for k, x in found.items()
    ),
    '; '.join(
      ' to '.join(f'{100 * bound:+.1f}' for bound in x['ci95'])
      for x in found.values()
    ),
    [x['ci95'][1] >= 0 for x in found.values()],
  )


def rereads_nothing(document: Mapping[str, Any]) -> Found:
  rows = document['rows']
  medians = [
    sorted(r['scoring_ratios'])[len(r['scoring_ratios']) // 2] for r in rows
  ]
  return Found(
    '; '.join(
      f'{ratio:.1f}x ({row["model"]}, {row["problems"]} at once)'
      for ratio, row in zip(medians, rows, strict=True)
    ),
    'of rounds: '
    + '; '.join(
      f'{min(r["scoring_ratios"]):.1f} to {max(r["scoring_ratios"]):.1f}'
      for r in rows
    ),
    [ratio >= 5 for ratio in medians],
  )


def sampling_is_fast(document: Mapping[str, Any]) -> Found:
  rows = document['rows']
  return Found(
    '; '.join(f'{r["ratio"]:.2f}x ({r["model"]}, {r["what"]})' for r in rows),
    'of rounds: '
    + '; '.join(
      f'{min(r["ratios"]):.2f} to {max(r["ratios"]):.2f}' for r in rows
    ),
    [r['ratio'] >= 3 for r in rows],
  )


def loop_is_fast(document: Mapping[str, Any]) -> Found:
  ratios = {row['rewards']: row['ratio']['wall'] for row in document['rows']}
  return Found(
    '; '.join(
      f'{sorted(each)[len(each) // 2]:.2f}x ({name})'
      for name, each in ratios.items()
    ),
    'of rounds: '
    + '; '.join(
      f'{min(each):.2f} to {max(each):.2f}' for each in ratios.values()
    ),
    [sorted(each)[len(each) // 2] >= 3 for each in ratios.values()],
  )


def fewer_chains(arm: str) -> Finder:
  """Chains of an arm until it is where outcome-only ends, by operations."""

  def find(document: Mapping[str, Any]) -> Found:
    found = {
      k: results['arms'][arm]['to_reach'][ENDS]
      for k, results in document['results'].items()
    }
    numbers, intervals = [], []
    for k, x in found.items():
      never = x['chains'] is None
      told = 'never' if never else f'{x["times_less"]:.1f}x'
      numbers.append(f'{told} ({k} operations)')
      ci95 = None if never else x['ci95']
      intervals.append(
        f'{ci95[0]:.1f} to {ci95[1]:.1f}' if ci95 else 'not estimated'
      )
    return Found(
      '; '.join(numbers),
      '; '.join(intervals),
      [
        x['chains'] is not None and x['ci95'] is not None and x['ci95'][0] > 1
        for x in found.values()
      ],
    )

  return find


def is_hacked(arm: str) -> Finder:
  """How far an arm falls from its best look, by operations."""

  def find(document: Mapping[str, Any]) -> Found:
    told = {
      k: results['arms'][arm] for k, results in document['results'].items()
    }
    ends = [
      (x['accuracy']['low'][-1], x['accuracy']['high'][-1])
      for x in told.values()
    ]
    return Found(
      '; '.join(
        f'{percent(x["best"]["accuracy"])} to '
        f'{percent(x["accuracy"]["mean"][-1])} ({k} operations)'
        for k, x in told.items()
      ),
      '; '.join(f'in the end {between(ci95)}' for ci95 in ends),
      [x['falls'] for x in told.values()],
    )

  return find


def weak_prm(with_outcome: bool) -> Finder:
  """How far accuracy falls by the forms of a weak PRM, alone or not."""

  def find(document: Mapping[str, Any]) -> Found:
    arms = {
      name: told
      for name, told in document['results']['arms'].items()
      if name.endswith('and outcome') == with_outcome
    }
    return Found(
      '; '.join(
        f'{percent(told["accuracy"]["mean"][0])} to '
        f'{percent(told["accuracy"]["mean"][-1])} ({name})'
        for name, told in arms.items()
      ),
      'in the end '
      + '; '.join(
        between((told['accuracy']['low'][-1], told['accuracy']['high'][-1]))
        for told in arms.values()
      ),
      [told['falls'] != with_outcome for told in arms.values()],
    )

  return find


def arm_leads(first: str, second: str, name: str) -> Finder:
  """Whether one arm of an ablation measures more than another, each seed."""

  def find(document: Mapping[str, Any]) -> Found:
    ours, theirs = (
      ablations.values(document, arm, name) for arm in (first, second)
    )
    pairs = [
      f'{percent(a)} to {percent(b)}' for a, b in zip(ours, theirs, strict=True)
    ]
    return Found(
      f'{percent(mean(ours))} to {percent(mean(theirs))}',
      f'each seed: {", ".join(pairs)}',
      [a > b for a, b in zip(ours, theirs, strict=True)],
    )

  return find


def pays_on(arm: str) -> Finder:
  """Whether a PRM's choice is better than a chain at random, each seed."""

  def find(document: Mapping[str, Any]) -> Found:
    chosen, random = (
      ablations.values(document, arm, name)
      for name in (ablations.BY_PRM, 'right chains')
    )
    return Found(
      f'{percent(mean(chosen))} to {percent(mean(random))}',
      'each seed: '
      + ', '.join(
        f'{percent(a)} to {percent(b)}'
        for a, b in zip(chosen, random, strict=True)
      ),
      [a > b for a, b in zip(chosen, random, strict=True)],
    )

  return find


def gap_grows(document: Mapping[str, Any]) -> Found:
  """PRM's lead over the ORM, the shortest chains and the longest."""
  gaps = {
    arm: [
      a - b
      for a, b in zip(
        ablations.values(document, arm, ablations.BY_PRM),
        ablations.values(document, arm, ablations.BY_ORM),
        strict=True,
      )
    ]
    for arm in document['runs']
  }
  short, *_, long = gaps.values()
  return Found(
    '; '.join(f'{100 * mean(each):+.1f} ({arm})' for arm, each in gaps.items()),
    'each seed, first and last: '
    + ', '.join(
      f'{100 * a:+.1f} to {100 * b:+.1f}'
      for a, b in zip(short, long, strict=True)
    ),
    [b > a for a, b in zip(short, long, strict=True)],
  )


def process_is_cheaper(behind: int) -> Finder:
  """PRM beside the ORM with `behind` times five times as many chains."""

  def find(document: Mapping[str, Any]) -> Found:
    arms = list(document['runs'])
    pairs = list(zip(arms, arms[behind:], strict=False))
    prm, orm = (
      [ablations.values(document, pair[side], name) for pair in pairs]
      for side, name in enumerate((ablations.BY_PRM, ablations.BY_ORM))
    )
    return Found(
      '; '.join(
        f'{percent(mean(a))} ({first} chains) to {percent(mean(b))} ({second})'
        for (first, second), a, b in zip(pairs, prm, orm, strict=True)
      ),
      f'each seed at {pairs[-1][0]} and {pairs[-1][1]}: '
      + ', '.join(
        f'{percent(a)} to {percent(b)}'
        for a, b in zip(prm[-1], orm[-1], strict=True)
      ),
      [
        a > b
        for ours, theirs in zip(prm, orm, strict=True)
        for a, b in zip(ours, theirs, strict=True)
      ],
    )

  return find


CLAIMS = (
  Claim(
    'prm_vs_orm',
    'Best of N by step scores beats best of N by answer scores',
    '78.2 to 72.4, MATH (Lightman et al., 2023)',
    steps_beat_answers,
  ),
  Claim(
    'prm_vs_orm',
    'Where errors are systematic more votes do not help',
    'none; the design of the domain',
    votes_do_not_help,
  ),
  Claim(
    'human_labels',
    'Human step labels make a PRM: F1 above a guess (from scratch, 0.7M)',
    '39 to 82 and 29 to 78 from 7B backbones (Zheng et al., 2024; Zhang et '
    'al., 2025)',
    human_labels_teach,
  ),
  Claim(
    'smollm2_prm',
    "A 135M model's training on step labels beats its own likelihood (F1)",
    'none',
    training_beats_likelihood,
  ),
  Claim(
    'label_sources',
    'Hard labels at threshold 0 beat soft ones (first-error F1)',
    'the same order (Zhang et al., 2025)',
    hard_beats_soft,
  ),
  Claim(
    'label_sources',
    'Where two sources agree labels are cleaner (% of chains)',
    'the same order (Zhang et al., 2025)',
    consensus_is_cleaner,
  ),
  Claim(
    'label_sources',
    'Labels of the most convincing wrong chains are worth more (by F1)',
    '2.6x (Lightman et al., 2023)',
    active_selection,
  ),
  Claim(
    'label_sources',
    'A PRM of soft rollouts chooses best by its last step (best of 64)',
    'last before product and min (Zhang et al., 2025)',
    best_aggregate('rollouts, soft', ('last',), ('min', 'prod')),
  ),
  Claim(
    'label_sources',
    'One of exact labels by its lowest step or their product',
    'the same for labels of people and judges (Zhang et al., 2025)',
    best_aggregate('verifier', ('min', 'prod'), ('last',)),
  ),
  Claim(
    'test_time_compute',
    "Beam search reaches best of 64's accuracy with a fifth of its compute",
    'aim of this project',
    little_compute,
  ),
  Claim(
    'test_time_compute',
    'Beam with 4 reaches best of 16 (points)',
    'aim of this project',
    beam_with_4,
  ),
  Claim(
    'rl_process_vs_outcome',
    "With PRM scores beside it outcome RL's end takes fewer chains",
    '5 to 6x (PAV; Setlur et al., 2025)',
    fewer_chains('outcome + PRM'),
  ),
  Claim(
    'rl_process_vs_outcome',
    'So do exact step labels',
    'none',
    fewer_chains('outcome + exact labels'),
  ),
  Claim(
    'rl_process_vs_outcome',
    'The sum of PRM scores as the only reward is hacked: accuracy falls',
    'below 4% at PRM rewards above 0.9 (arXiv 2410.15115)',
    is_hacked('PRM, sum'),
  ),
  Claim(
    'rl_process_vs_outcome',
    'So is its min form',
    'PRM-only rewards are usually hacked (PURE; Cheng et al., 2025)',
    is_hacked('PRM, min form'),
  ),
  Claim(
    'reward_hacking',
    'A weak PRM as the only reward is hacked, in every form',
    'PRM-only RL usually hacks within 200 steps (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=False),
  ),
  Claim(
    'reward_hacking',
    "The verifier's word beside it ends that",
    'some verified rewards prevent it (PURE; Cheng et al., 2025)',
    weak_prm(with_outcome=True),
  ),
  Claim(
    'after_first_error',
    'Steps after the first error are better left out than called wrong (F1 '
    'after 400 updates)',
    'none',
    arm_leads('mask', 'bad', ablations.F1),
  ),
  Claim(
    'after_first_error',
    'Labels of each such step by itself are better still (F1)',
    'none',
    arm_leads('keep', 'mask', ablations.F1),
  ),
  Claim(
    'labelled_chains',
    'With equal chains a PRM chooses better than an ORM (best of 16)',
    'at every number of chains (Lightman et al., 2023, figure 4)',
    process_is_cheaper(0),
  ),
  Claim(
    'labelled_chains',
    'With at most as many labels, too',
    'none',
    process_is_cheaper(1),
  ),
  Claim(
    'prm_and_orm',
    "A tenth of an ORM's logit helps a PRM to choose (best of 16)",
    'none',
    arm_leads('w = 0.1', 'w = 0', 'best of 16, 2,050 chains'),
  ),
  Claim(
    'chain_length',
    "A PRM's lead over an ORM grows with length (points, best of 16)",
    'alike on GSM8K (Uesato et al., 2022), apart on MATH (Lightman et al., 2023)',
    gap_grows,
  ),
  Claim(
    'out_of_distribution',
    'A PRM of 5 steps chooses better than at random among chains of 12',
    'PRMs stay ahead on fresh exams (Lightman et al., 2023, section 5)',
    pays_on('12 steps'),
  ),
  Claim(
    'out_of_distribution',
    'And where the facts are others (modulo 9)',
    'none',
    pays_on('modulo 9'),
  ),
  Claim(
    'speed',
    'A PRM that keeps its cache scores a beam at least 5x faster than from '
    'whole texts',
    'aim of this project',
    rereads_nothing,
    'tree_search.json',
  ),
  Claim(
    'speed',
    'The sampler is at least 3x as fast as `transformers.generate`',
    'aim of this project',
    sampling_is_fast,
    'sampling.json',
  ),
  Claim(
    'speed',
    "The RL loop is at least 3x as fast as TRL's GRPOTrainer (float32, CPU)",
    'aim of this project',
    loop_is_fast,
    'rl.json',
  ),
)


def render() -> str:
  """The table, Markdown."""
  lines = [
    '| experiment | claim | literature | here | 95% interval | verdict |',
    '| --- | --- | --- | --- | --- | --- |',
  ]
  for claim in CLAIMS:
    path = HERE / claim.folder / claim.results
    found = claim.find(json.loads(path.read_text()))
    lines.append(
      f'| [{claim.folder}]({claim.folder}) | {claim.text} | '
      f'{claim.literature} | {found.number} | {found.interval} | '
      f'{found.verdict} |'
    )
  return '\n'.join(lines)


def main() -> None:
  text = render()
  readme_table.fill(HERE / 'README.md', text)
  print(text)


if __name__ == '__main__':
  main()
