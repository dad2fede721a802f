"""Draws the figure of each trap, as docs/evaluation.md shows it."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import figures
from experiments.tables import mean

BLUE, ORANGE, GREEN, RED, PURPLE, *_ = figures.COLOURS
GREY = '#777777'
SIZE = (7.0, 2.9)


def _finish(figure: Any, path: pathlib.Path) -> None:
  figure.tight_layout()
  figures.save(figure, path)


def _percent(values: Sequence[float]) -> list[float]:
  return [100 * value for value in values]


def _means(seeds: Mapping[str, Any], method: str) -> list[float]:
  curves = [each[method]['mean'] for each in seeds.values()]
  return [mean(points) for points in zip(*curves, strict=True)]


def null(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, (accuracy, lead) = figures.make_panels(2, SIZE)
  n, seeds = found['n'], found['seeds']
  for method, name, style, colour in (
    ('prm', 'PRM', '-', BLUE),
    ('orm', 'ORM', '-', ORANGE),
    ('random_per_text', 'random score for each text', ':', GREY),
  ):
    accuracy.plot(n, _percent(_means(seeds, method)), style, color=colour)
    accuracy.lines[-1].set(label=name, linewidth=2)
  random = mean([each['random'] for each in seeds.values()])
  accuracy.axhline(100 * random, color=GREY, linewidth=0.8, label='random pick')
  accuracy.set_xscale('log', base=2)
  accuracy.set_xticks(n, [str(k) for k in n])
  accuracy.set_xlabel('samples to pick from, N')
  accuracy.set_ylabel('picked answer is right, %')
  accuracy.set_ylim(0, 100)
  accuracy.legend(fontsize=7, frameon=False, loc='lower left')
  lengths = found['chain_length']
  rows = [
    [
      mean([s['prm'] - s[than] for s in seeds.values()])
      for seeds in lengths.values()
    ]
    for than in ('orm', 'random_per_text')
  ]
  x = [int(arm.split()[0]) for arm in lengths]
  for row, than, colour in zip(
    rows,
    ('the ORM', 'a random score for each text'),
    (ORANGE, GREY),
    strict=True,
  ):
    lead.plot(x, _percent(row), 'o-', color=colour, label=f'over {than}')
  lead.set_ylim(0)
  lead.set_xticks(x)
  lead.set_xlabel('steps of a chain')
  lead.set_ylabel("PRM's lead, best of 16, points")
  lead.legend(fontsize=7, frameon=False, loc='lower right')
  _finish(figure, path)


def unread(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, panels = figures.make_panels(2, SIZE, sharey=True)
  for panel, name in zip(panels, ('gsm8k', 'math'), strict=True):
    rows, x = found[name], range(len(found['windows']))
    for how, label, colour in (
      ('unread_is_right', 'unread steps count as right', RED),
      ('without_verdict', 'no verdict without reading', BLUE),
    ):
      f1 = _percent([row[how]['f1'] for row in rows])
      panel.plot(x, f1, 'o-', color=colour, label=label)
    read = _percent([row['chains_read'] for row in rows])
    panel.plot(x, read, ':', color=GREY, label='chains read to the end')
    panel.set_xticks(list(x), [f'{w:,}' for w in found['windows']])
    panel.tick_params(axis='x', labelsize=7)
    panel.set_xlabel(f'window, bytes ({name})')
    panel.grid(axis='y', alpha=0.25)
  panels[0].set_ylabel('F1 of a perfect reader, %')
  panels[1].legend(fontsize=7, frameon=False, loc='lower right')
  _finish(figure, path)


def segmentation(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, panels = figures.make_panels(3, (7.0, 2.4), sharex=True, sharey=True)
  for panel, (name, rows) in zip(panels, found['cut'].items(), strict=True):
    forms = [form for form in rows if 'random' not in form]
    null = 100 * rows['random score for each text']['mean']
    panel.axvline(null, color=GREY, linestyle=':')
    for k, form in enumerate(forms):
      low, high = _percent(rows[form]['ci95'])
      lead_low, lead_high = rows[form]['over_null']['ci95']
      apart = lead_low > 0 or lead_high < 0
      colour = RED if apart else BLUE
      panel.plot([low, high], [k, k], color=colour, linewidth=1.2)
      panel.plot([100 * rows[form]['mean']], [k], 'o', color=colour, ms=4)
    panel.set_yticks(range(len(forms)), forms)
    panel.set_title(name, fontsize=7.5)
    panel.set_xlabel('right, %')
  panels[0].invert_yaxis()
  _finish(figure, path)


def thresholds(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, (curves, optimism) = figures.make_panels(2, SIZE)
  dev = found['dev']['threshold']
  for name, colour in (('gsm8k', BLUE), ('math', ORANGE)):
    own = found['sets'][name]
    x, y = zip(*own['curve'], strict=True)
    curves.plot(x, _percent(y), color=colour, label=name)
    curves.axhline(100 * own['noise'], color=colour, linestyle=':', lw=1)
    curves.plot([dev], [100 * own['from_dev']['f1']], 'v', color=colour)
    best = own['from_itself']
    curves.plot([best['threshold']], [100 * best['f1']], 'o', color=colour)
  curves.axvline(dev, color=GREY, linewidth=0.8)
  curves.annotate(
    'chosen on dev', (dev, 34), ha='right', fontsize=7, color=GREY
  )
  curves.set_xlim(0.3, 1)
  curves.set_xlabel('steps are flagged whose score is below')
  curves.set_ylabel('first-error F1, %')
  curves.legend(fontsize=7, frameon=False, loc='upper left')
  x = [row['chains'] for row in found['optimism']]
  for name, label, colour in (
    ('on_itself', 'on these chains', RED),
    ('on_others', 'on all other chains', BLUE),
  ):
    y = _percent([row[name] for row in found['optimism']])
    optimism.plot(x, y, 'o-', color=colour, label=label)
  optimism.set_xscale('log')
  optimism.set_xticks(x, [str(k) for k in x])
  optimism.minorticks_off()
  optimism.set_xlabel('chains on which the threshold is chosen')
  optimism.set_ylabel('F1 of noise, %')
  optimism.legend(fontsize=7, frameon=False)
  _finish(figure, path)


def length(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, panels = figures.make_panels(2, (7.0, 2.3), sharex=True, sharey=True)
  for panel, name in zip(panels, ('gsm8k', 'math'), strict=True):
    rows = found[name]['auc']
    for k, (method, auc) in enumerate(rows.items()):
      colour = BLUE if method == 'PRM' else GREY
      if auc['ci95']:
        panel.plot(auc['ci95'], [k, k], color=colour, linewidth=1.2)
      panel.plot([auc['value']], [k], 'o', color=colour, ms=4)
    panel.axvline(0.5, color='black', linewidth=0.6)
    names = ['PRM (0.7M)' if m == 'PRM' else m for m in rows]
    panel.set_yticks(range(len(rows)), names)
    panel.set_xlabel(f'AUC of steps ({name})')
  panels[0].invert_yaxis()
  _finish(figure, path)


def ranking(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, (panel,) = figures.make_panels(1, (7.0, 2.6))
  rows = [
    (f'only how hard a problem is ({name})', each)
    for name, each in found['difficulty'].items()
  ]
  for kind in ('orm', 'prm'):
    rows += [
      (f'{kind.upper()}, seed {seed}', each[kind])
      for seed, each in found['trained'].items()
    ]
  for k, (_, each) in enumerate(rows):
    pooled, within = each['auc'], each['within_problem']['value']
    panel.plot([within, pooled], [k, k], color='#cccccc', zorder=0)
    for bounds, colour, shift in (
      (each['ci95'], GREY, -0.12),
      (each['within_problem']['ci95'], BLUE, 0.12),
    ):
      panel.plot(bounds, [k + shift] * 2, color=colour, linewidth=0.8)
    panel.plot(
      [pooled], [k - 0.12], 'o', color=GREY, ms=4, label='' if k else 'pooled'
    )
    panel.plot(
      [within],
      [k + 0.12],
      'D',
      color=BLUE,
      ms=4,
      label='' if k else 'within problems',
    )
  panel.axvline(0.5, color='black', linewidth=0.6)
  panel.set_yticks(range(len(rows)), [name for name, _ in rows])
  panel.invert_yaxis()
  panel.set_xlabel('AUC of chains')
  panel.legend(fontsize=7, frameon=False, loc=(0.66, 0.45))
  _finish(figure, path)


def intervals(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, (left, middle, right) = figures.make_panels(3, SIZE)
  truth = 100 * found['truth']
  for panel, name in ((left, 'chains'), (middle, 'problems')):
    over = found['over'][name]
    for k, (value, half) in enumerate(over['shown']):
      low, high = 100 * (value - half), 100 * (value + half)
      colour = BLUE if low <= truth <= high else RED
      panel.plot([low, high], [k, k], color=colour, linewidth=1)
    panel.axvline(truth, color='black', linewidth=0.6)
    panel.set_yticks([])
    panel.set_xlim(25, 75)
    panel.set_xlabel('accuracy, %')
    covered = 100 * over['covered']
    panel.set_title(f'over {name}: {covered:.0f}% hold the truth', fontsize=7.5)
  arms = found['seeds']
  for k, each in enumerate(arms.values()):
    right.plot(_percent(each['over_problems']), [k, k], color=RED, linewidth=4)
    right.plot(
      _percent(each['seeds']), [k] * len(each['seeds']), 'o', color=BLUE, ms=5
    )
  right.set_yticks(range(len(arms)), list(arms), fontsize=7)
  right.set_ylim(-0.6, len(arms) - 0.4)
  right.set_xlabel('accuracy after RL, %')
  right.set_title('three seeds; bars: over problems', fontsize=7.5)
  _finish(figure, path)


def calibration(found: Mapping[str, Any], path: pathlib.Path) -> None:
  figure, (left, right) = figures.make_panels(2, SIZE)
  seed, first = next(iter(found.items()))
  x = [b['score'] for b in first['bins']]
  left.plot([0, 1], [0, 100], ':', color=GREY)
  left.plot(
    x, _percent([b['accuracy'] for b in first['bins']]), 'o-', color=BLUE
  )
  left.set_xlabel(f'mean score of a bin (seed {seed})')
  left.set_ylabel('steps that are right, %')
  counts = [b['count'] for b in first['bins']]
  right.bar(x, counts, width=0.04, color=BLUE)
  right.set_yscale('log')
  right.set_xlabel('mean score of a bin')
  right.set_ylabel('steps')
  _finish(figure, path)


FIGURES: Mapping[str, Callable[[Mapping[str, Any], pathlib.Path], None]] = {
  'null': null,
  'unread': unread,
  'segmentation': segmentation,
  'thresholds': thresholds,
  'length': length,
  'ranking': ranking,
  'intervals': intervals,
  'calibration': calibration,
}


def draw(document: Mapping[str, Any], folder: pathlib.Path) -> None:
  """Writes a figure for each trap, NAME.svg."""
  for name, function in FIGURES.items():
    function(document['traps'][name], folder / f'{name}.svg')
