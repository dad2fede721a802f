"""Writes the README.md of an exported run: what it is, how it was measured.

The Hub shows it as the model's card; its first lines are the Hub's metadata.
"""

import json

from prm_jax.report import compare, files
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

RESULTS = 'results.json'
PRM = """\
A process reward model: it gives every step of a reasoning chain the probability
that the step is right.

```python
import prm_jax

prm = prm_jax.load({where!r})
scores = prm.score(problem, steps)  # a text and a list of texts
```
"""
BACKBONE = """\
The backbone of a process reward model, without its head. `transformers` opens
it with `AutoModelForCausalLM.from_pretrained({where!r})`. The numbers below are
those of the whole reward model.
"""
POLICY = """\
A language model that writes reasoning chains step by step. `transformers` opens
it with `AutoModelForCausalLM.from_pretrained({where!r})`.
"""

NOT_MEASURED = """\
The run measured another checkpoint, so there are no results of this one.
"""


def model_card(
  workdir: paths.Path, kind: str, where: str, step: int, is_best: bool
) -> str:
  """Returns the card of a run.

  Args:
    workdir: the run's; without results.json the card has no numbers.
    kind: what was written of it: PRM, BACKBONE or POLICY.
    where: what opens it: a folder, or OWNER/NAME of the Hub.
    step: the step of the checkpoint.
    is_best: whether the run chose and measured this checkpoint.

  Raises:
    UserError: a file of the workdir is malformed.
  """
  tags = ['prm_jax', *(['process-reward-model'] if kind == PRM else [])]
  lines = [
    '---',
    'library_name: transformers',
    f'tags: {json.dumps(tags)}',
    '---',
    '',
  ]
  run = None
  if (workdir / RESULTS).is_file():
    run = compare.read_run(workdir, '')
  title = run.manifest.get('name') if run else None
  lines += [f'# {title or "A model of prm_jax"}', '']
  lines += [kind.format(where=where)]
  if run:
    try:
      lines += _numbers(run) if is_best else [NOT_MEASURED]
      lines += _provenance(run, step)
    except files.MALFORMED as error:
      raise UserError(
        f'{workdir / RESULTS}: is malformed ({error}); run its job again'
      ) from error
  return '\n'.join(lines).rstrip() + '\n'


def _numbers(run: compare.ComparedRun) -> list[str]:
  """Returns the table of all numbers that have an interval."""
  rows = [
    f'| {name} | {value} | {interval} |'
    for name, [(value, interval)] in compare.number_rows([run])
    if interval
  ]
  if not rows:
    return []
  head = ['| number | value | 95% interval |', '| --- | --- | --- |']
  return ['## Results', '', *head, *rows, '']


def _provenance(run: compare.ComparedRun, step: int) -> list[str]:
  """Returns the part of the manifest that says how to make it again."""
  known = run.manifest
  kept = {
    name: known[name]
    for name in ('command', 'git_commit', 'seeds', 'versions')
    if name in known
  }
  kept |= {k: v for k, v in known.items() if k.endswith('fingerprint')}
  kept['checkpoint'] = step
  text = json.dumps(kept, indent=2, ensure_ascii=False)
  return ['## How it was made', '', '```json', text, '```']
