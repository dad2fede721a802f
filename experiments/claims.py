"""What the literature claims, what was found here, and whether it holds.

    python -m experiments.claims

Reads the results.json of every experiment and fills the table of README.md
beside this file. A verdict follows from the numbers by the rule of its claim.
"""

import json
import pathlib
from typing import NamedTuple

from experiments import ablations, findings
from prm_jax.report import readme_table

HERE = pathlib.Path(__file__).parent


class Claim(NamedTuple):
  """A claim, and how an experiment's results answer it."""

  folder: str
  text: str
  literature: str
  find: findings.Finder
  results: str = 'results.json'


CLAIMS = (
  Claim(
    'prm_vs_orm',
    'Best of N by step scores beats best of N by answer scores',
    '78.2 to 72.4, MATH (Lightman et al., 2023)',
    findings.steps_beat_answers,
  ),
  Claim(
    'prm_vs_orm',
    'Where errors are systematic more votes do not help',
    'none; the design of the domain',
    findings.votes_do_not_help,
  ),
  Claim(
    'human_labels',
    'Human step labels make a PRM: F1 above a guess (from scratch, 0.7M)',
    '39 to 82 and 29 to 78 from 7B backbones (Zheng et al., 2024; Zhang et '
    'al., 2025)',
    findings.human_labels_teach,
  ),
  Claim(
    'smollm2_prm',
    "A 135M model's training on step labels beats its own likelihood (F1)",
    'none',
    findings.training_beats_likelihood,
  ),
  Claim(
    'label_sources',
    'Hard labels at threshold 0 beat soft ones (first-error F1)',
    'the same order (Zhang et al., 2025)',
    findings.hard_beats_soft,
  ),
  Claim(
    'label_sources',
    'Where two sources agree labels are cleaner (% of chains)',
    'the same order (Zhang et al., 2025)',
    findings.consensus_is_cleaner,
  ),
  Claim(
    'label_sources',
    'Labels of the most convincing wrong chains are worth more (by F1)',
    '2.6x (Lightman et al., 2023)',
    findings.active_selection,
  ),
  Claim(
    'label_sources',
    'A PRM of soft rollouts chooses best by its last step (best of 64)',
    'last before product and min (Zhang et al., 2025)',
    findings.best_aggregate('rollouts, soft', ('last',), ('min', 'prod')),
  ),
  Claim(
    'label_sources',
    'One of exact labels by its lowest step or their product',
    'the same for labels of people and judges (Zhang et al., 2025)',
    findings.best_aggregate('verifier', ('min', 'prod'), ('last',)),
  ),
  Claim(
    'test_time_compute',
    "Beam search reaches best of 64's accuracy with a fifth of its compute",
    'aim of this project',
    findings.little_compute,
  ),
  Claim(
    'test_time_compute',
    'Beam with 4 reaches best of 16 (points)',
    'aim of this project',
    findings.beam_with_4,
  ),
  Claim(
    'rl_process_vs_outcome',
    "With PRM scores beside it outcome RL's end takes fewer chains",
    '5 to 6x (PAV; Setlur et al., 2025)',
    findings.fewer_chains('outcome + PRM'),
  ),
  Claim(
    'rl_process_vs_outcome',
    'So do exact step labels',
    'none',
    findings.fewer_chains('outcome + exact labels'),
  ),
  Claim(
    'rl_process_vs_outcome',
    'The sum of PRM scores as the only reward is hacked: accuracy falls',
    'below 4% at PRM rewards above 0.9 (arXiv 2410.15115)',
    findings.is_hacked('PRM, sum'),
  ),
  Claim(
    'rl_process_vs_outcome',
    'So is its min form',
    'PRM-only rewards are usually hacked (PURE; Cheng et al., 2025)',
    findings.is_hacked('PRM, min form'),
  ),
  Claim(
    'reward_hacking',
    'A weak PRM as the only reward is hacked, in every form',
    'PRM-only RL usually hacks within 200 steps (PURE; Cheng et al., 2025)',
    findings.weak_prm(with_outcome=False),
  ),
  Claim(
    'reward_hacking',
    "The verifier's word beside it ends that",
    'some verified rewards prevent it (PURE; Cheng et al., 2025)',
    findings.weak_prm(with_outcome=True),
  ),
  Claim(
    'after_first_error',
    'Steps after the first error are better left out than called wrong (F1 '
    'after 400 updates)',
    'none',
    findings.arm_leads('mask', 'bad', ablations.F1),
  ),
  Claim(
    'after_first_error',
    'Labels of each such step by itself are better still (F1)',
    'none',
    findings.arm_leads('keep', 'mask', ablations.F1),
  ),
  Claim(
    'labelled_chains',
    'With equal chains a PRM chooses better than an ORM (best of 16)',
    'at every number of chains (Lightman et al., 2023, figure 4)',
    findings.process_is_cheaper(0),
  ),
  Claim(
    'labelled_chains',
    'With at most as many labels, too',
    'none',
    findings.process_is_cheaper(1),
  ),
  Claim(
    'prm_and_orm',
    "A tenth of an ORM's logit helps a PRM to choose (best of 16)",
    'none',
    findings.arm_leads('w = 0.1', 'w = 0', 'best of 16, 2,050 chains'),
  ),
  Claim(
    'chain_length',
    "A PRM's lead over an ORM grows with length (points, best of 16)",
    'alike on GSM8K (Uesato et al., 2022), apart on MATH (Lightman et al., '
    '2023)',
    findings.gap_grows,
  ),
  Claim(
    'out_of_distribution',
    'A PRM of 5 steps chooses better than at random among chains of 12',
    'PRMs stay ahead on fresh exams (Lightman et al., 2023, section 5)',
    findings.pays_on('12 steps'),
  ),
  Claim(
    'out_of_distribution',
    'And where the facts are others (modulo 9)',
    'none',
    findings.pays_on('modulo 9'),
  ),
  Claim(
    'speed',
    'A PRM that keeps its cache scores a beam at least 5x faster than from '
    'whole texts',
    'aim of this project',
    findings.rereads_nothing,
    'tree_search.json',
  ),
  Claim(
    'speed',
    'The sampler is at least 3x as fast as `transformers.generate`',
    'aim of this project',
    findings.sampling_is_fast,
    'sampling.json',
  ),
  Claim(
    'speed',
    "The RL loop is at least 3x as fast as TRL's GRPOTrainer (float32, CPU)",
    'aim of this project',
    findings.loop_is_fast,
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
