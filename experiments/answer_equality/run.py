"""How often is a pair of final answers judged right, by us and by math-verify?

    pip install -e '.[verify]'
    PRM_JAX_DATA=DIR python -m experiments.answer_equality.run

Makes pairs of MATH's answers that are equal or different by construction
(`pairs.py`). Three judges decide each: ours, in both orders, and math-verify's
own parse and verify on the same texts, where a text outside dollar signs or a
box is put into either. Writes results.json and the tables of README.md beside
this file.
"""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import command_line
from experiments.answer_equality.pairs import Pair, make_pairs, read_answers
from experiments.tables import table
from prm_jax.data.datasets import DATA_VARIABLE
from prm_jax.data.verify import answers, symbolic
from prm_jax.report.sections import wilson
from prm_jax.runtime.errors import exit_on_user_error

PAIRS, SEED = 3_200, 0
SECONDS = 20.0  # time for one pair, after which it is judged different
OURS = 'ours'
MATH_VERIFY = {
  'math-verify in \\boxed{...}': r'\boxed{ANSWER}',
  'math-verify in $...$': '$ANSWER$',
}
# LaTeX that math-verify finds in a text by itself.
FRAMED = re.compile(r'\$.*\$|\\boxed|\\\(|\\\[', re.DOTALL)
Judge = Callable[[str, str], bool]


def ours(answer: str, truth: str) -> bool:
  return answers.equal(answer, truth, SECONDS)


def math_verify_alone(frame: str) -> Judge:
  """Makes a judge of math-verify alone, in a process that can be killed.

  Args:
    frame: where a text goes that math-verify would not find LaTeX in.
  """
  script = pathlib.Path(__file__).with_name('math_verify_alone.py')
  worker = symbolic.Worker(script)

  def framed(text: str) -> str:
    # An escaped dollar sign is a currency, and no frame.
    found = FRAMED.search(text.replace(r'\$', ''))
    return text if found else frame.replace('ANSWER', text)

  def judge(answer: str, truth: str) -> bool:
    try:
      return worker.equal(framed(answer), framed(truth), SECONDS)
    except symbolic.TimedOut:
      return False

  return judge


def judged(pairs: Sequence[Pair]) -> dict[str, list[bool]]:
  """Lets each judge decide every pair, and ours also in the other order."""
  judges = {OURS: ours} | {
    k: math_verify_alone(frame) for k, frame in MATH_VERIFY.items()
  }
  found = {
    name: [judge(pair.answer, pair.truth) for pair in pairs]
    for name, judge in judges.items()
  }
  found['backwards'] = [ours(pair.truth, pair.answer) for pair in pairs]
  return found


def share(pairs: int, count: int) -> dict[str, Any]:
  """Returns the share of some pairs among all, with its 95% interval."""
  return {
    'value': pairs / count,
    'ci95': wilson(pairs / count, count),
    'pairs': pairs,
    'of': count,
  }


def counted(
  pairs: Sequence[Pair], verdicts: Mapping[str, Sequence[bool]]
) -> dict[str, Any]:
  """Counts both kinds of error of each judge, by how the pairs were made."""
  judges = [OURS, *MATH_VERIFY]
  kinds: dict[str, dict[str, dict[str, int]]] = {'equal': {}, 'different': {}}
  for i, pair in enumerate(pairs):
    row = kinds['equal' if pair.equal else 'different'].setdefault(
      pair.kind, {'pairs': 0} | dict.fromkeys(judges, 0)
    )
    row['pairs'] += 1
    for name in judges:
      row[name] += verdicts[name][i] != pair.equal

  def total(truth: str, name: str) -> int:
    return sum(row[name] for row in kinds[truth].values())

  equal, different = total('equal', 'pairs'), total('different', 'pairs')
  overall = {}
  for name in judges:
    missed, taken = total('equal', name), total('different', name)
    overall[name] = {
      'right': share(len(pairs) - missed - taken, len(pairs)),
      'false_equal': share(taken, different),
      'false_different': share(missed, equal),
    }
  asymmetric = sum(
    a != b for a, b in zip(verdicts[OURS], verdicts['backwards'], strict=True)
  )
  return {'judges': overall, 'asymmetric': asymmetric, 'kinds': kinds}


def render(found: Mapping[str, Any]) -> str:
  """Makes all tables."""
  judges = list(found['judges'])
  heads = (
    'judge | right, % | 95% interval | false equal | % of the different | '
    'false different | % of the equal'
  )
  rows = []
  for name, judge in found['judges'].items():
    right, errors = judge['right'], []
    for kind in ('false_equal', 'false_different'):
      part = judge[kind]
      errors += [f'{part["pairs"]:,} of {part["of"]:,}', _share(part)]
    rows.append([name, f'{100 * right["value"]:.2f}', _between(right), *errors])
  parts = [
    table(heads, rows),
    f'Pairs that our judge decides differently in the other order: '
    f'{found["asymmetric"]}.',
  ]
  for kind, title in (('equal', 'respelling'), ('different', 'change')):
    rows = [
      [_plain(name), str(row['pairs']), *(str(row[judge]) for judge in judges)]
      for name, row in found['kinds'][kind].items()
    ]
    heads = [title, 'pairs', *(f'wrong: {judge}' for judge in judges)]
    parts.append(table(heads, rows))
  return '\n\n'.join(parts)


def _plain(name: str) -> str:
  """Escapes what Markdown would not show as it is."""
  return re.sub(r'([\\$*])', r'\\\1', name)


def _between(part: Mapping[str, Any]) -> str:
  low, high = part['ci95']
  return f'{100 * low:.2f} to {100 * high:.2f}'


def _share(part: Mapping[str, Any]) -> str:
  return f'{100 * part["value"]:.2f} ({_between(part)})'


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(__doc__, __file__, '--data-root')
  parser.add_argument('--pairs', type=int, default=PAIRS)
  parser.add_argument('--seed', type=int, default=SEED)
  args = command_line.parse(parser)
  answers_of_math = read_answers(pathlib.Path(args.data_root) / 'math')
  pairs = make_pairs(answers_of_math, args.pairs, args.seed)
  document = command_line.about(args) | {
    'seed': args.seed,
    'pairs': len(pairs),
    **counted(pairs, judged(pairs)),
  }
  document['command'] = f'{DATA_VARIABLE}=DIR {args.command}'
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
