"""Scores chains without a server: what the service is compared with.

Reads a task from stdin, and prints the seconds of `Scorer.score_many` on its
chains, after others were scored for which the programs were compiled.
"""

import json
import sys
import time

import prm_jax
from prm_jax.main import prepare_jax


def main() -> None:
  prepare_jax(0)
  task = json.load(sys.stdin)
  prm = prm_jax.load(task['prm'])
  warm, asked = (
    [(problem, steps) for request in task[name] for problem, steps in request]
    for name in ('warm', 'requests')
  )
  prm.score_many(warm)
  prm.score_many(asked[:1])
  began = time.perf_counter()
  prm.score_many(asked)
  print(json.dumps({'seconds': time.perf_counter() - began}))


if __name__ == '__main__':
  main()
