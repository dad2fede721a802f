"""What do jobs need of TPUs and GPUs? The real compilers say, without a chip.

    pip install -e '.[tpu,cuda,experiments]'
    python -m experiments.scaling.run --workdir /tmp/scaling

Compiles the train step and the scoring step of every real-size config for the
topology that it names, and of three model sizes for 8 to 1,024 chips, and the
programs of jobs that sample, search and learn by RL, each by `python -m
prm_jax.aot`. What was compiled at this commit is not compiled again.
whole_residuals.json has what an earlier commit took, which each document names.
Writes results.json, figure.svg and the tables of README.md beside this file.
`--jobs 2` compiles two programs at a time (about 2 GB of memory each).
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from experiments import command_line, figures
from experiments.runner import ROOT
from experiments.scaling import beside_maxtext
from experiments.tables import table
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import exit_on_user_error

CONFIGS = (
  'qwen2_5_math_1_5b',
  'qwen2_5_math_7b',
  'llama3_8b',
  'qwen2_5_72b',
)
SIZES = {
  'qwen2_5_math_1_5b': '1.5B',
  'qwen2_5_math_7b': '7B',
  'qwen2_5_72b': '72B',
}
ROW = 4096  # tokens; every chip has one row
# (model, chip) -> topologies, each with the number of chips that share a layer.
TOPOLOGIES = {
  ('qwen2_5_math_1_5b', 'v5e'): (
    ('2x4', 1),
    ('8x8', 1),
    ('16x16', 4),
  ),
  ('qwen2_5_math_7b', 'v5p'): (
    ('2x2x2', 1),
    ('4x4x4', 4),
    ('8x8x8', 4),
    ('8x8x16', 4),
  ),
  ('qwen2_5_72b', 'v5p'): (
    ('4x4x4', 8),
    ('8x8x8', 8),
    ('8x8x16', 8),
  ),
}
LONG = 32_768  # tokens
BEFORE = pathlib.Path(__file__).with_name('whole_residuals.json')
# Name -> what is shown, and the arguments of prm_jax.aot.
WITH_MODELS = {
  'sample_7b': (
    'sampling, 7B',
    ['--config=configs/sample_math.py:qwen2_5_math_7b'],
  ),
  'label_7b': (
    'labels by rollouts, 7B',
    ['--config=configs/label_math.py:rollouts,qwen2_5_math_7b'],
  ),
  'search_7b': (
    'beam search, policy and PRM of 7B',
    ['--config=configs/search_math.py:beam,qwen2_5_math_7b'],
  ),
  'rl_7b': (
    'GRPO, policy, reference and PRM of 7B',
    [
      '--config=configs/rl_math.py:qwen2_5_math_7b',
      '--topology=v5e:4x4',
      '--config.sampling.slots=256',
      '--config.sampling.spread=True',
      '--config.train.problems=16',
    ],
  ),
  'sample_72b': (
    'sampling, 72B',
    ['--config=configs/sample_math.py:qwen2_5_72b'],
  ),
  'search_72b': (
    'beam search, policy and PRM of 72B',
    ['--config=configs/search_math.py:beam,qwen2_5_72b'],
  ),
  'qlora_7b': (
    'PRM of 7B, adapters beside 4 bits',
    [
      '--config=configs/prm_math.py:qwen2_5_math_7b,qlora',
      '--topology=l4:1',
      '--config.mesh.model=1',
      '--config.data.batch_size=4',
      '--config.data.shards=1',
      '--config.train.microbatches=4',
    ],
  ),
}


def chips(topology: str) -> int:
  """Returns the number of chips of a topology, such as v5e:4x4."""
  product = 1
  for size in topology.partition(':')[2].split('x'):
    product *= int(size)
  return product


def row_flags(length: int, rows: int) -> list[str]:
  """Returns the flags of a batch: rows of this many tokens."""
  return [
    f'--config.data.batch_size={rows}',
    '--config.data.shards=0',
    f'--config.data.row_length={length}',
    f'--config.data.max_length={length}',
    f'--config.data.max_steps_per_row={length // 16}',
  ]


def name_of(config: str, chip: str, shape: str) -> str:
  """Names the program of a model size on a topology."""
  return f'scaling_{config}_{chip}_{shape}'


def jobs() -> dict[str, list[str]]:
  """Returns the arguments of prm_jax.aot for every program, by its name."""
  found = {
    config: [f'--config=configs/prm_math.py:{config}'] for config in CONFIGS
  }
  found['qwen2_5_math_7b_v5p_8x8x8'] = [
    '--config=configs/prm_math.py:qwen2_5_math_7b',
    '--topology=v5p:8x8x8',
  ]
  found['qwen2_5_math_7b_long'] = [
    '--config=configs/prm_math.py:qwen2_5_math_7b',
    *row_flags(LONG, 64),
  ]
  for (config, chip), topologies in TOPOLOGIES.items():
    for shape, model in topologies:
      topology = f'{chip}:{shape}'
      found[name_of(config, chip, shape)] = [
        f'--config=configs/prm_math.py:{config}',
        f'--topology={topology}',
        f'--config.mesh.model={model}',
        *row_flags(ROW, chips(topology)),
      ]
  return found | {name: flags for name, (_, flags) in WITH_MODELS.items()}


def compile_job(
  name: str, flags: list[str], workdir: pathlib.Path, commit: str | None
) -> dict[str, Any]:
  """Runs prm_jax.aot once, unless its result of this commit is there."""
  output = workdir / f'{name}.json'
  document = json.loads(output.read_text()) if output.exists() else None
  if not document or document['manifest']['git_commit'] != commit:
    output.unlink(missing_ok=True)
    done = subprocess.run(
      [sys.executable, '-m', 'prm_jax.aot', *flags, f'--output={output}'],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    # A program that does not fit the memory fails, and has written its result.
    if not output.exists():
      raise SystemExit(f'{name}: {done.stderr.strip()}')
    document = json.loads(output.read_text())
  document['manifest']['command'] = ' '.join(
    ['python -m prm_jax.aot', *flags, '--output=FILE']
  )
  print(f'{name}: done', flush=True)
  return document


def row(document: Mapping[str, Any], shown: str) -> list[str]:
  """Makes the row of one train step and its scoring step."""
  train, score = (document['programs'][name] for name in ('train', 'score'))
  chip, cells = document['chip'], ['', '', '']
  if 'memory_bytes' in train:
    least = train['seconds_at_least']
    gigabytes = train['memory_bytes']['total'] / 1e9
    cells = [
      f'{gigabytes:.1f} ({chip["hbm_bytes"] / 1e9:.0f})',
      ', '.join(
        f'{1e3 * least[name]:,.0f}'
        for name in ('compute', 'hbm', 'interconnect')
      ),
      f'{100 * train["mfu_at_most"]:.0f}%',
    ]
  return [
    shown,
    f'{document["chips"]:,} x {chip["name"]}',
    ' x '.join(f'{k} {n}' for k, n in document['mesh'].items() if n > 1),
    f'{document["tokens"]:,}',
    *cells,
    f'{100 * score["mfu_at_most"]:.0f}%' if 'mfu_at_most' in score else '',
    'yes' if train['fits'] and score['fits'] else 'no',
  ]


def rows_table(documents: Mapping[str, Any], names: Mapping[str, str]) -> str:
  """Makes a table with a row for each name of a program."""
  heads = (
    'model | chips | mesh | tokens a step | GB a chip (of) | '
    'compute, HBM, links: ms at least | MFU at most | scoring: MFU at most | '
    'fits'
  )
  return table(
    heads, [row(documents[name], shown) for name, shown in names.items()]
  )


JOB_HEADS = (
  'job | chips | mesh | GB a chip (of) | tokens written a second at most | '
  'training: MFU at most | fits'
)


def fullest(document: Mapping[str, Any]) -> float | None:
  """Returns the most bytes that a program takes with what lies beside it."""
  taken = [each.get('memory_bytes') for each in document['programs'].values()]
  return max(each['total'] for each in taken) if all(taken) else None


def job_row(document: Mapping[str, Any], shown: str) -> list[str]:
  """Makes the row of a job: its fullest program, and its rates."""
  chip, programs = document['chip'], document['programs']
  taken, written = fullest(document), document['written_per_second_at_most']
  train = programs.get('train', {}).get('mfu_at_most')
  return [
    shown,
    f'{document["chips"]:,} x {chip["name"]}',
    ' x '.join(f'{k} {n}' for k, n in document['mesh'].items() if n > 1),
    f'{taken / 1e9:.1f} ({chip["hbm_bytes"] / 1e9:.0f})' if taken else '',
    f'{written:,.0f}' if written else '',
    f'{100 * train:.0f}%' if train else '',
    'yes' if all(each['fits'] for each in programs.values()) else 'no',
  ]


def split_row(
  before: Mapping[str, Any], after: Mapping[str, Any], shown: str
) -> list[str]:
  """Makes the row of a train step with residuals that are whole, and split."""
  trained = [each['programs']['train'] for each in (before, after)]
  gigabytes = [each['memory_bytes']['total'] / 1e9 for each in trained]
  traffic = [1e3 * each['seconds_at_least']['hbm'] for each in trained]
  bounds = [100 * each['mfu_at_most'] for each in trained]
  return [
    shown,
    f'{after["chips"]:,} x {after["chip"]["name"]}',
    *(f'{x:.1f}' for x in gigabytes),
    *(f'{x:,.0f}' for x in traffic),
    *(f'{x:.0f}%' for x in bounds),
  ]


def split_table(documents: Mapping[str, Any]) -> str:
  """Makes the table of what splitting the residuals over T saves."""
  shown = {'qwen2_5_72b': f'`:{CONFIGS[-1]}`'}
  rows = [
    split_row(before, documents[name], shown.get(name, f'72B, rows of {ROW:,}'))
    for name, before in json.loads(BEFORE.read_text()).items()
  ]
  heads = (
    'model | chips | GB a chip, whole | split | HBM, ms at least, whole | '
    'split | MFU at most, whole | split'
  )
  return table(heads, rows)


def render(documents: Mapping[str, Any]) -> str:
  """Makes the tables."""
  configs = {config: f'`:{config}`' for config in CONFIGS}
  configs['qwen2_5_math_7b_v5p_8x8x8'] = '`:qwen2_5_math_7b`'
  configs['qwen2_5_math_7b_long'] = f'`:qwen2_5_math_7b`, rows of {LONG:,}'
  sizes = {
    name_of(config, chip, shape): SIZES[config]
    for (config, chip), topologies in TOPOLOGIES.items()
    for shape, _ in topologies
  }
  jobs_of_models = [
    job_row(documents[name], shown) for name, (shown, _) in WITH_MODELS.items()
  ]
  return (
    f'{rows_table(documents, configs)}\n\n'
    f'Rows of {ROW:,} tokens, one to a chip:\n\n'
    f'{rows_table(documents, sizes)}\n\n'
    'Residuals whole on every chip that shares a layer, and split over them '
    f'along the tokens:\n\n{split_table(documents)}\n\n'
    'Jobs with more than one program; memory is that of the fullest one, with '
    'all else that lies on a chip meanwhile. Jobs that do not train use the '
    'chips of one host:\n\n'
    f'{table(JOB_HEADS, jobs_of_models)}\n\n'
    'One train step of Qwen2.5 7B, to predict the next token, in rows of '
    f'{beside_maxtext.ROW:,} on {beside_maxtext.CHIPS} chips of v5e, here and '
    f'by MaxText:\n\n{beside_maxtext.read_table()}'
  )


def draw(documents: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws memory, and the bound on MFU, against the number of chips."""
  figure, panels = figures.make_panels(2, (9, 3.6), font_size=10)
  for (config, chip), topologies in TOPOLOGIES.items():
    runs = [documents[name_of(config, chip, shape)] for shape, _ in topologies]
    runs = [r for r in runs if 'memory_bytes' in r['programs']['train']]
    count = [run['chips'] for run in runs]
    train = [run['programs']['train'] for run in runs]
    gigabytes = [t['memory_bytes']['total'] / 1e9 for t in train]
    label = f'{SIZES[config]}, {chip}'
    panels[0].plot(count, gigabytes, 'o-', label=label)
    panels[1].plot(count, [100 * t['mfu_at_most'] for t in train], 'o-')
  for panel, title in zip(
    panels, ('HBM, GB a chip', 'MFU at most, %'), strict=True
  ):
    panel.set_xscale('log', base=2)
    panel.set_xlabel('chips')
    panel.set_title(title, loc='left', fontsize=10)
    panel.spines[['top', 'right']].set_visible(False)
    panel.xaxis.set_major_formatter('{x:,.0f}')
  panels[0].set_yscale('log', base=2)
  panels[0].yaxis.set_major_formatter('{x:,.0f}')
  panels[1].set_ylim(0, 100)
  panels[0].legend(frameon=False, fontsize=8)
  figure.tight_layout()
  figures.save(figure, path)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(__doc__, __file__, '--workdir', '--jobs')
  parser.set_defaults(jobs=1)
  args = command_line.parse(parser)
  args.workdir.mkdir(parents=True, exist_ok=True)
  commit = manifest.git_commit()
  with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
    waiting = {
      name: pool.submit(compile_job, name, flags, args.workdir, commit)
      for name, flags in jobs().items()
    }
    documents = {name: job.result() for name, job in waiting.items()}
  draw(documents, args.output / 'figure.svg')
  command_line.write(args.output, documents, render(documents))


if __name__ == '__main__':
  main()
