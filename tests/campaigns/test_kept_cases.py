"""Every case that a campaign once failed holds now."""

import importlib
import json

import pytest

from tests.campaigns.campaign import KEPT, generator

CASES = [
  (path.stem, *json.loads(line).values())
  for path in sorted(KEPT.glob('*.jsonl'))
  for line in path.read_text().splitlines()
]


@pytest.mark.parametrize(('name', 'seed', 'number'), CASES)
def test_a_case_that_failed_holds(name, seed, number):
  campaign = importlib.import_module(f'tests.campaigns.{name}').CAMPAIGN
  assert campaign.case(generator(seed, number)) > 0
