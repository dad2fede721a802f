"""Says in words and in a table what the traps measured.

`sentences` are the measured lines of docs/evaluation.md, and `named` compares
with numbers from a draft that is older than this experiment.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.tables import between, mean, percent, points

WIDTH = 98  # of the lines of docs/


def auc(value: float) -> str:
  """Formats an AUC."""
  return f'{value:.3f}'.removeprefix('0')


def listed(values: Iterable[str]) -> str:
  """Joins words as "a, b and c"."""
  *most, last = values
  return f'{", ".join(most)} and {last}' if most else last


def _curve(seeds: Mapping[str, Any], method: str) -> list[float]:
  curves = [each[method]['mean'] for each in seeds.values()]
  return [mean(values) for values in zip(*curves, strict=True)]


def _leads(seeds: Mapping[str, Any], over: str) -> float:
  return mean([each['prm'] - each[over] for each in seeds.values()])


def _of_null(found: Mapping[str, Any]) -> str:
  seeds, n = found['seeds'], found['n']
  null, orm, prm = (
    _curve(seeds, name) for name in ('random_per_text', 'orm', 'prm')
  )
  texts = mean([each['distinct_texts'] for each in seeds.values()])
  lengths = found['chain_length']
  shortest, *_, longest = lengths
  ours, theirs = (
    [points(_leads(lengths[arm], over)) for arm in (shortest, longest)]
    for over in ('random_per_text', 'orm')
  )
  modulo = found['modulo_9'].values()
  return (
    f'{n[-1]} samples of a problem hold {texts:.1f} different chains on '
    'average. A random score for each text picks right for '
    f'{listed(map(percent, null))}% of the problems at N = '
    f'{listed(map(str, n))}. The ORM goes from {percent(orm[0])} to '
    f'{percent(orm[-1])}, which is {points(orm[-1] - null[-1])} points against '
    f'the null; the PRM ends at {percent(prm[-1])}. Where the facts are others '
    '(modulo 9), best of 16 by a PRM is right for '
    f'{percent(mean([s["prm"] for s in modulo]))}%, a random pick for '
    f'{percent(mean([s["random"] for s in modulo]))}%, the null for '
    f'{percent(mean([s["random_per_text"] for s in modulo]))}%. Over the ORM a '
    f'PRM leads by {theirs[0]} points on chains of {shortest} and by '
    f'{theirs[1]} on {longest}; over the null by {ours[0]} and {ours[1]}.'
  )


def _of_unread(found: Mapping[str, Any]) -> str:
  parts = []
  for name in ('gsm8k', 'math'):
    (row,) = [row for row in found[name] if row['window'] == 1024]
    parts.append(
      f'on {name} it reads {percent(row["steps_read"])}% of the steps and '
      f'{percent(row["chains_read"])}% of the chains to their end, and has F1 '
      f'{percent(row["unread_is_right"]["f1"])} where unread steps count as '
      f'right, {percent(row["without_verdict"]["f1"])} where they do not'
    )
  return (
    'A reader that knows every label, with a window of 1,024 bytes: '
    f'{"; ".join(parts)}. Its accuracy on right chains is '
    f'{percent(row["unread_is_right"]["acc_correct"])}% in the first case, '
    'whatever it has read.'
  )


def _of_segmentation(found: Mapping[str, Any]) -> str:
  lines, sentences, several = found['cut'].values()
  null = lines['random score for each text']['mean']
  return (
    f'{percent(found["one_line"])}% of the answers of a GSM8K pool are one '
    'line, so one step: nearly all answers of two of its six models, which are '
    f'right more often ({percent(found["right_of_one_line"])}% to '
    f'{percent(found["right_of_others"])}%). So "fewest steps" picks right for '
    f'{percent(lines["fewest steps"]["mean"])}%, "shortest longest step" for '
    f'{percent(lines["shortest longest step"]["mean"])}%, where chance is '
    f'{percent(null)}%. Cut into sentences, the same rules pick '
    f'{percent(sentences["fewest steps"]["mean"])}% and '
    f'{percent(sentences["shortest longest step"]["mean"])}%. Among the models '
    'that write several lines they lie '
    f'{points(several["fewest steps"]["over_null"]["mean"])} and '
    f'{points(several["shortest longest step"]["over_null"]["mean"])} points '
    'from chance.'
  )


def _of_thresholds(found: Mapping[str, Any]) -> str:
  parts = []
  for name, own in found['sets'].items():
    parts.append(
      f'{percent(own["from_dev"]["f1"])} on {name} with the threshold of the '
      f'dev chains, {percent(own["from_other_half"]["f1"])} with that of the '
      f'other half of the set, {percent(own["from_itself"]["f1"])} with its '
      'own best'
    )
  noise = [
    f'{percent(own["noise_drawn"]["mean"])} on {name}'
    for name, own in found['sets'].items()
  ]
  few, *_, many = found['optimism']
  wrong = listed(f'{percent(v)}% of {k}' for k, v in found['wrong'].items())
  return (
    'A logistic regression on length, digits and place, trained on human '
    f'labels of other chains, has F1 {"; ".join(parts)}. '
    f'{percent(found["dev"]["wrong"])}% of the dev chains have an error, '
    f'{wrong}. The other side: noise with its own best threshold has F1 '
    f'{listed(noise)}. Chosen on {few["chains"]} chains, it shows '
    f'{percent(few["on_itself"])} there and {percent(few["on_others"])} on '
    f'all others; chosen on {many["chains"]}, '
    f'{percent(many["on_itself"])} and {percent(many["on_others"])}.'
  )


def _of_length(found: Mapping[str, Any]) -> str:
  parts = []
  for name in ('gsm8k', 'math'):
    rows = found[name]['auc']
    parts.append(
      f'{auc(rows["length"]["value"])} on {name} '
      f'({" to ".join(map(auc, rows["length"]["ci95"]))}; digits '
      f'{auc(rows["digits"]["value"])}, PRM {auc(rows["PRM"]["value"])})'
    )
  return (
    'A logistic regression on the length of a step alone, trained on human '
    f'labels, ranks the steps of ProcessBench with AUC {listed(parts)}. The '
    'PRM is ours of 0.7M parameters, from [human_labels]'
    '(../experiments/human_labels), judged on the steps that it reads.'
  )


def _of_ranking(found: Mapping[str, Any]) -> str:
  hard = [
    f'{auc(each["auc"])} ({name})' for name, each in found['difficulty'].items()
  ]
  trained = found['trained'].values()
  parts = []
  for kind in ('orm', 'prm'):
    pairs = [
      (t[kind]['auc'], t[kind]['within_problem']['value']) for t in trained
    ]
    shown = listed(
      f'{auc(pooled)} to {auc(within)}' for pooled, within in pairs
    )
    parts.append(f'{kind.upper()}s {shown}')
  higher = sum(
    t['orm']['auc'] > t['orm']['within_problem']['value'] for t in trained
  )
  return (
    'A score that knows only how hard each problem is has a pooled AUC of '
    f'{listed(hard)}, and 1/2 within problems: it cannot choose. Trained for '
    f'two minutes, pooled to within problems: {"; ".join(parts)}. The pooled '
    f'AUC of the ORM is the higher one for {higher} of {len(trained)} seeds.'
  )


def _of_intervals(found: Mapping[str, Any]) -> str:
  chains, problems = found['over']['chains'], found['over']['problems']
  summed = found['seeds']['PRM, sum']
  return (
    f'{found["sets"]:,} test sets of {found["problems"]} problems with '
    f'{found["samples"]} samples each: the 95% interval over chains is '
    f'{percent(chains["half_width"])} points to each side and holds the '
    f'truth {percent(chains["covered"])}% of the time; over problems it is '
    f'{percent(problems["half_width"])} and '
    f'{percent(problems["covered"])}%. And seeds: the accuracy after RL on '
    'sums of PRM scores was given as '
    f'{percent(summed["mean"])} ({between(summed["over_problems"])}), over '
    'problems; its three seeds ended at '
    f'{listed(map(percent, summed["seeds"]))}.'
  )


def _of_calibration(found: Mapping[str, Any]) -> str:
  seed, first = next(iter(found.items()))
  ece = [f'{100 * each["ece"]:.1f}' for each in found.values()]
  unsure = [f'{100 * each["unsure"]["ece"]:.1f}' for each in found.values()]
  share = [percent(each['unsure']['share']) for each in found.values()]
  never = first['never_right']
  return (
    f'PRMs of {len(found)} seeds are off by {listed(ece)} points on average '
    f'over all steps. Seed {seed} has {never["bins"]} bins with mean scores '
    f'from {never["lowest"]:.2f} to {never["highest"]:.2f} of which no step is '
    f'right: {never["steps"]} of {first["steps"]:,} steps, too few to show in '
    f'the average. Over the scores from .05 to .95 ({listed(share)}% of the '
    f'steps) the error is {listed(unsure)} points.'
  )


_SENTENCES = {
  'null': _of_null,
  'unread': _of_unread,
  'segmentation': _of_segmentation,
  'thresholds': _of_thresholds,
  'length': _of_length,
  'ranking': _of_ranking,
  'intervals': _of_intervals,
  'calibration': _of_calibration,
}


def sentences(document: Mapping[str, Any]) -> dict[str, str]:
  """Returns what each trap measured, in words and wrapped."""
  return {
    name: textwrap.fill(
      write(document['traps'][name]),
      WIDTH,
      break_long_words=False,
      break_on_hyphens=False,
    )
    for name, write in _SENTENCES.items()
  }


def named(traps: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Lists the numbers of an earlier draft, ours, and why they differ."""
  null, cut = traps['null'], traps['segmentation']['cut']['at lines']
  lengths = list(null['chain_length'].values())
  sets, aucs = traps['thresholds']['sets'], traps['length']
  trained = traps['ranking']['trained'].values()
  texts = mean([s['distinct_texts'] for s in null['seeds'].values()])

  def row(what: str, before: str, here: Sequence[str], why: str) -> dict:
    return {'what': what, 'before': before, 'here': ', '.join(here), 'why': why}

  exact = 'here: exact; how the earlier one was computed is not known'
  return [
    row(
      'random score for each text, N = 1 to 64, %',
      '49.7, 49.9, 48.2, 44.0, 36.2, 27.9, 21.8',
      list(map(percent, _curve(null['seeds'], 'random_per_text'))),
      'here: exact, mean of the committed seeds. One sample and two are equal '
      'in an exact row, so the earlier one was simulated',
    ),
    row('different chains among 64', '10.6', [f'{texts:.1f}'], exact),
    row(
      'null of best of 16, modulo 9, each seed, %',
      '33.1, 36.6, 40.4',
      [percent(s['random_per_text']) for s in null['modulo_9'].values()],
      exact,
    ),
    row(
      "PRM's lead over the null, shortest and longest chains, points",
      '29, 36',
      [points(_leads(lengths[k], 'random_per_text')) for k in (0, -1)],
      'both differ by one to two points, for an unknown reason; over chains of '
      f'{list(null["chain_length"])[-2]} ours is '
      + points(_leads(lengths[-2], 'random_per_text')),
    ),
    row(
      'F1 of noise, math and gsm8k, %',
      '18.9, 21.0',
      [
        percent(sets[name]['noise_drawn']['mean']) for name in ('math', 'gsm8k')
      ],
      'draws of noise, each at its own best threshold. The results hold '
      'the expected F1 at the best rate, '
      + ' and '.join(percent(sets[n]['noise']) for n in ('math', 'gsm8k')),
    ),
    row(
      'AUC of length, gsm8k and math',
      '.686, .680',
      [auc(aucs[n]['auc']['length']['value']) for n in ('gsm8k', 'math')],
      'the same',
    ),
    row(
      'AUC of the 0.7M PRM, gsm8k and math',
      '.529, .503',
      [auc(aucs[n]['auc']['PRM']['value']) for n in ('gsm8k', 'math')],
      'before: an earlier run, which counted unread steps as right; here: the '
      'committed run',
    ),
    row(
      'AUC of an ORM, pooled and within problems',
      '.82, .585',
      [
        auc(mean([t['orm']['auc'] for t in trained])),
        auc(mean([t['orm']['within_problem']['value'] for t in trained])),
      ],
      'before: one ORM, which is not said; here: trained for two minutes, mean '
      f'of {len(trained)} seeds. The gap is much smaller',
    ),
    row(
      'pool: fewest steps, shortest longest step, random, %',
      '51.3, 36.1, 43.1',
      [
        percent(cut[name]['mean'])
        for name in ('fewest steps', 'shortest longest step', 'random pick')
      ],
      'by its value, the random pick before is of 250 problems: here '
      f'{percent(traps["segmentation"]["right_of_250_problems"])}; the rest is '
      'of all 1,319',
    ),
  ]
