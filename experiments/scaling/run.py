"""What training needs of TPU pods, from the real compiler, without a pod.

    pip install -e '.[tpu,experiments]'
    python experiments/scaling/run.py --workdir /tmp/scaling

Compiles the train and the scoring step of every real-size config for the
topology that it names, and of three sizes of model for 8 to 1,024 chips, each
by `python -m prm_jax.aot`; what this commit has compiled is not compiled again.
Writes results.json, figure.svg and the tables of README.md beside this file.
`--jobs 2` compiles two at a time (about 2 GB of memory each).
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

import matplotlib

matplotlib.use('svg')
from matplotlib import pyplot

from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
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
ROW = 4096  # tokens, one row to a chip
# Chips, topology and how many of them share a layer, per model and chip.
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
COMMIT = manifest.git_commit()


def chips(topology: str) -> int:
  product = 1
  for size in topology.partition(':')[2].split('x'):
    product *= int(size)
  return product


def rows_of(length: int, rows: int) -> list[str]:
  """Flags for a batch of some rows of a length."""
  return [
    f'--config.data.batch_size={rows}',
    f'--config.data.row_length={length}',
    f'--config.data.max_length={length}',
    f'--config.data.max_steps_per_row={length // 16}',
  ]


def jobs() -> dict[str, list[str]]:
  """Name -> arguments of prm_jax.aot."""
  found = {
    config: [f'--config=configs/prm_math.py:{config}'] for config in CONFIGS
  }
  found['qwen2_5_math_7b_v5p_8x8x8'] = [
    '--config=configs/prm_math.py:qwen2_5_math_7b',
    '--topology=v5p:8x8x8',
  ]
  found['qwen2_5_math_7b_long'] = [
    '--config=configs/prm_math.py:qwen2_5_math_7b',
    *rows_of(LONG, 64),
  ]
  for (config, chip), topologies in TOPOLOGIES.items():
    for shape, model in topologies:
      topology = f'{chip}:{shape}'
      found[f'scaling_{config}_{chip}_{shape}'] = [
        f'--config=configs/prm_math.py:{config}',
        f'--topology={topology}',
        f'--config.mesh.model={model}',
        *rows_of(ROW, chips(topology)),
      ]
  return found


def compile_job(name: str, flags: list[str], workdir: pathlib.Path) -> dict:
  """One run of prm_jax.aot, unless its result is there."""
  output = workdir / f'{name}.json'
  document = json.loads(output.read_text()) if output.exists() else None
  if not document or document['manifest']['git_commit'] != COMMIT:
    output.unlink(missing_ok=True)
    done = subprocess.run(
      [sys.executable, '-m', 'prm_jax.aot', *flags, f'--output={output}'],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    if not output.exists():  # what does not fit is written, too
      raise SystemExit(f'{name}: {done.stderr.strip()}')
    document = json.loads(output.read_text())
  document['manifest']['command'] = ' '.join(
    ['python -m prm_jax.aot', *flags, '--output=FILE']
  )
  print(f'{name}: done', flush=True)
  return document


def table(documents: dict[str, dict], name_of: dict[str, str]) -> str:
  """Markdown: one line per train step."""
  lines = [
    '| model | chips | mesh | tokens a step | GB a chip (of) | compute, HBM, '
    'links: ms at least | MFU at most | scoring: MFU at most | fits |',
    '| --- ' * 9 + '|',
  ]
  for name, shown in name_of.items():
    document = documents[name]
    train, score = (document['programs'][k] for k in ('train', 'score'))
    mesh = ' x '.join(
      f'{axis} {size}' for axis, size in document['mesh'].items() if size > 1
    )
    cells = [
      shown,
      f'{document["chips"]:,} x {document["chip"]["name"]}',
      mesh,
      f'{document["tokens"]:,}',
    ]
    if 'memory_bytes' in train:
      times = train['seconds_at_least']
      cells += [
        f'{train["memory_bytes"]["total"] / 1e9:.1f} '
        f'({document["chip"]["hbm_bytes"] / 1e9:.0f})',
        ', '.join(
          f'{1e3 * times[k]:,.0f}' for k in ('compute', 'hbm', 'interconnect')
        ),
        f'{100 * train["mfu_at_most"]:.0f}%',
      ]
    else:
      cells += ['', '', '']
    cells += [
      f'{100 * score["mfu_at_most"]:.0f}%' if 'mfu_at_most' in score else '',
      'yes' if train['fits'] and score['fits'] else 'no',
    ]
    lines.append('| ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def render(documents: dict[str, dict]) -> str:
  """Both tables, Markdown."""
  named = {config: f'`:{config}`' for config in CONFIGS}
  named['qwen2_5_math_7b_v5p_8x8x8'] = '`:qwen2_5_math_7b`'
  named['qwen2_5_math_7b_long'] = f'`:qwen2_5_math_7b`, rows of {LONG:,}'
  sizes = {
    f'scaling_{config}_{chip}_{shape}': SIZES[config]
    for (config, chip), topologies in TOPOLOGIES.items()
    for shape, _ in topologies
  }
  return (
    f'{table(documents, named)}\n\nRows of {ROW:,} tokens, one to a chip:\n\n'
    f'{table(documents, sizes)}'
  )


def draw(documents: dict[str, dict], path: pathlib.Path) -> None:
  """Memory and the bound on MFU over chips."""
  figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6))
  for (config, chip), topologies in TOPOLOGIES.items():
    runs = [
      documents[f'scaling_{config}_{chip}_{shape}'] for shape, _ in topologies
    ]
    runs = [r for r in runs if 'memory_bytes' in r['programs']['train']]
    count = [run['chips'] for run in runs]
    train = [run['programs']['train'] for run in runs]
    label = f'{SIZES[config]}, {chip}'
    gigabytes = [t['memory_bytes']['total'] / 1e9 for t in train]
    axes[0].plot(count, gigabytes, 'o-', label=label)
    axes[1].plot(count, [100 * t['mfu_at_most'] for t in train], 'o-')
  for axis, title in zip(
    axes, ('HBM, GB a chip', 'MFU at most, %'), strict=True
  ):
    axis.set_xscale('log', base=2)
    axis.set_xlabel('chips')
    axis.set_title(title, loc='left', fontsize=10)
    axis.spines[['top', 'right']].set_visible(False)
    axis.xaxis.set_major_formatter('{x:,.0f}')
  axes[0].set_yscale('log', base=2)
  axes[0].yaxis.set_major_formatter('{x:,.0f}')
  axes[1].set_ylim(0, 100)
  axes[0].legend(frameon=False, fontsize=8)
  figure.tight_layout()
  figure.savefig(path, metadata={'Date': None})


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--jobs', type=int, default=1, help='at the same time')
  options = parser.parse_args()
  options.workdir.mkdir(parents=True, exist_ok=True)
  wanted = jobs()
  with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
    documents = dict(
      zip(
        wanted,
        pool.map(
          lambda name: compile_job(name, wanted[name], options.workdir), wanted
        ),
        strict=True,
      )
    )
  manifest.write_json(HERE / 'results.json', documents)
  readme_table.fill(HERE / 'README.md', render(documents))
  draw(documents, HERE / 'figure.svg')


if __name__ == '__main__':
  main()
