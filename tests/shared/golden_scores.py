"""Ids and scores that the authors' own code gave for tiny published PRMs.

tests/parity/make_published_golden.py wrote them with torch and transformers.
"""

import json
import pathlib

GOLDEN = pathlib.Path(__file__).parents[1] / 'inference' / 'golden'
# float32 in another order of operations; scores are probabilities.
F32 = {'rtol': 1e-4, 'atol': 1e-5}


def golden(style):
  lines = (GOLDEN / f'{style}.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def chains(style):
  return [(record['problem'], record['steps']) for record in golden(style)]
