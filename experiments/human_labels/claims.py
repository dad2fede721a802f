"""The claims of human_labels."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import MISSING, Case, Claim, Effect, Found, judge
from experiments.tables import percent


def human_labels_teach(document: Mapping[str, Any]) -> Found:
  """Compares F1 with that of the best baseline of each set.

  Baselines are taken as known numbers: noise's is exact.
  """
  cases, nulls = [], []
  for name, found in document['results']['localisation'].items():
    known = {
      key: it['f1'] for key, it in found['baselines'].items() if it['f1']
    }
    best = max(known, key=lambda key: known[key])
    ends = [bound - known[best] for bound in found['ci95']]
    sides = f'{percent(found["f1"])} to {percent(known[best])}'
    cases.append(
      Case(Effect(found['f1'] - known[best], ends), name, sides, seeds=1)
    )
    noise = percent(known['noise']) if 'noise' in known else MISSING
    nulls.append(f'{best} {percent(known[best])}, noise {noise} ({name})')
  return judge(cases, '; '.join(nulls))


CLAIMS = (
  Claim(
    'A PRM of 0.7M parameters from scratch learns from human step labels (F1 '
    'above the best baseline that reads no words)',
    '68 and 63, Qwen2.5-Math-7B on PRM800K (Zheng et al., 2024; Zhang et al., '
    '2025)',
    human_labels_teach,
  ),
)
