"""How often do we, and math-verify alone, judge a pair of answers right?

    pip install -e '.[verify]'
    PRM_JAX_DATA=DIR python -m experiments.answer_equality.run

Makes pairs of MATH's answers that are equal or different by construction
(`pairs.py`) and asks three judges about each: ours, in both orders, and
math-verify's own parse and verify on the same texts, put in dollar signs or in
a box where they stand in neither. Writes results.json and the table of
README.md beside this file.
"""

import argparse
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.answer_equality.pairs import Pair, make_pairs, read_answers
from prm_jax.data.datasets import DATA_VARIABLE
from prm_jax.data.verify import answers, symbolic
from prm_jax.report import readme_table
from prm_jax.report.sections import wilson
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
COMMAND = 'PRM_JAX_DATA=DIR python -m experiments.answer_equality.run'
PAIRS, SEED = 3_200, 0
SECONDS = 20.0  # for a pair; then it is judged different
OURS = 'ours'
MATH_VERIFY = {
  'math-verify in \\boxed{...}': r'\boxed{ANSWER}',
  'math-verify in $...$': '$ANSWER$',
}
# LaTeX that math-verify finds by itself.
FRAMED = re.compile(r'\$.*\$|\\boxed|\\\(|\\\[', re.DOTALL)
Judge = Callable[[str, str], bool]


def ours(answer: str, truth: str) -> bool:
  return answers.equal(answer, truth, SECONDS)


def alone(frame: str) -> Judge:
  """math-verify by itself, in a process that can be killed."""
  worker = symbolic.Worker(HERE / 'math_verify_alone.py')

  def framed(text: str) -> str:
    # The dollar sign of an amount is no frame.
    found = FRAMED.search(text.replace(r'\$', ''))
    return text if found else frame.replace('ANSWER', text)

  def judge(answer: str, truth: str) -> bool:
    try:
      return worker.equal(framed(answer), framed(truth), SECONDS)
    except symbolic.TimedOut:
      return False

  return judge


def judged(pairs: Sequence[Pair]) -> dict[str, list[bool]]:
  """What each judge says of every pair, and ours the other way round."""
  judges = {OURS: ours} | {k: alone(frame) for k, frame in MATH_VERIFY.items()}
  found = {
    name: [judge(pair.answer, pair.truth) for pair in pairs]
    for name, judge in judges.items()
  }
  found['backwards'] = [ours(pair.truth, pair.answer) for pair in pairs]
  return found


def share(wrong: int, count: int) -> dict[str, Any]:
  return {
    'value': wrong / count,
    'ci95': wilson(wrong / count, count),
    'pairs': wrong,
    'of': count,
  }


def counted(
  pairs: Sequence[Pair], verdicts: Mapping[str, Sequence[bool]]
) -> dict[str, Any]:
  """Both kinds of error of each judge, in all and by how pairs were made."""
  judges = [OURS, *MATH_VERIFY]
  wrong = {
    name: [
      v != pair.equal for v, pair in zip(verdicts[name], pairs, strict=True)
    ]
    for name in judges
  }
  total = {True: 0, False: 0}
  kinds: dict[str, dict[str, dict[str, int]]] = {'equal': {}, 'different': {}}
  for i, pair in enumerate(pairs):
    total[pair.equal] += 1
    row = kinds['equal' if pair.equal else 'different'].setdefault(
      pair.kind, {'pairs': 0} | dict.fromkeys(judges, 0)
    )
    row['pairs'] += 1
    for name in judges:
      row[name] += wrong[name][i]
  overall = {}
  for name in judges:
    errors = {
      kind: sum(
        w
        for w, pair in zip(wrong[name], pairs, strict=True)
        if pair.equal is kind
      )
      for kind in (True, False)
    }
    overall[name] = {
      'right': share(len(pairs) - sum(errors.values()), len(pairs)),
      'false_equal': share(errors[False], total[False]),
      'false_different': share(errors[True], total[True]),
    }
  asymmetric = sum(
    a != b for a, b in zip(verdicts[OURS], verdicts['backwards'], strict=True)
  )
  return {'judges': overall, 'asymmetric': asymmetric, 'kinds': kinds}


def render(found: Mapping[str, Any]) -> str:
  """Both tables, Markdown."""
  lines = [
    '| judge | right, % | 95% interval | false equal | % of the different '
    '| false different | % of the equal |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for name, row in found['judges'].items():
    cells = [f'{100 * row["right"]["value"]:.2f}', _between(row['right'])]
    for kind in ('false_equal', 'false_different'):
      part = row[kind]
      percent = f'{100 * part["value"]:.2f} ({_between(part)})'
      cells += [f'{part["pairs"]:,} of {part["of"]:,}', percent]
    lines.append(f'| {name} | {" | ".join(cells)} |')
  lines += [
    '',
    f'Pairs that we judge otherwise in the other order: {found["asymmetric"]}.',
  ]
  names = list(found['judges'])
  for kind, title in (('equal', 'respelling'), ('different', 'change')):
    lines += [
      '',
      f'| {title} | pairs | wrong: {" | wrong: ".join(names)} |',
      '| --- ' * (len(names) + 2) + '|',
    ]
    for name, row in found['kinds'][kind].items():
      wrong = ' | '.join(str(row[judge]) for judge in names)
      lines.append(f'| {_plain(name)} | {row["pairs"]} | {wrong} |')
  return '\n'.join(lines)


def _plain(name: str) -> str:
  """As a cell of a table, where a backslash and a dollar sign are text."""
  return re.sub(r'([\\$*])', r'\\\1', name)


def _between(part: Mapping[str, Any]) -> str:
  low, high = part['ci95']
  return f'{100 * low:.2f} to {100 * high:.2f}'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    '--data-root',
    type=pathlib.Path,
    default=os.environ.get(DATA_VARIABLE),
    help=f'holds math/; ${DATA_VARIABLE} where it is not given',
  )
  parser.add_argument('--pairs', type=int, default=PAIRS)
  parser.add_argument('--seed', type=int, default=SEED)
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args = parser.parse_args()
  if not args.data_root:
    parser.error(f'--data-root is missing, and {DATA_VARIABLE} is not set')
  pairs = make_pairs(
    read_answers(pathlib.Path(args.data_root) / 'math'), args.pairs, args.seed
  )
  found = {
    'command': COMMAND,
    'git_commit': manifest.git_commit(),
    'seed': args.seed,
    'pairs': len(pairs),
  } | counted(pairs, judged(pairs))
  manifest.write_json(args.output / 'results.json', found)
  text = render(found)
  readme = args.output / 'README.md'
  if readme.exists():
    readme_table.fill(readme, text)
  print(text)


if __name__ == '__main__':
  main()
