"""The claims of human_labels."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Claim, Found
from experiments.tables import between, percent


def human_labels_teach(document: Mapping[str, Any]) -> Found:
  """Finds whether the interval of F1 lies above a uniform guess, by set."""
  sets = document['results']['localisation']
  return Found(
    '; '.join(f'{percent(x["f1"])} ({name})' for name, x in sets.items()),
    '; '.join(between(x['ci95']) for x in sets.values()),
    [x['ci95'][0] > x['baselines']['random']['f1'] for x in sets.values()],
  )


CLAIMS = (
  Claim(
    'A PRM of 0.7M parameters from scratch learns from human step labels (F1 '
    'above a uniform guess)',
    '68 and 63, Qwen2.5-Math-7B on PRM800K (Zheng et al., 2024; Zhang et al., '
    '2025)',
    human_labels_teach,
  ),
)
