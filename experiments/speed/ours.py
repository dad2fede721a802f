"""Our side of run.py: prm_jax's train step and Scorer.best_of_n.

Prints one line of JSON.

    train    pipeline, transfer and train step, as train.fit runs them; tokens
             are those of the chains, however many of them share
    score    Scorer.best_of_n, text in, step scores out
    weights  the parameters that score uses, written for transformers
    peak     a 2048-cube matrix product, in each dtype
"""

import argparse
import dataclasses
import hashlib
import json
import os

import jax
import numpy as np

from experiments.speed import workload as workload_lib
from experiments.speed.sides import CLOCK_VARIABLE, CLOCKS, cores
from prm_jax import Scorer
from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import StepFormat
from prm_jax.data.pipeline import fill_rate, make_batches
from prm_jax.data.targets import TargetConfig
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.models import HeadConfig, TransformerConfig, init_head, init_params
from prm_jax.models.hub.publish import SaveOptions, save_model
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.loop import (
  compile_train_step,
  make_train_step,
  put_batch,
)
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import init_state, make_init

HEAD = HeadConfig('two_class')
now = CLOCKS[os.environ.get(CLOCK_VARIABLE, 'wall')]
MESH = {'replica': 1, 'fsdp': -1, 'model': 1}


def make_config(model: str, dtype: str) -> tuple[TransformerConfig, StepFormat]:
  """Returns the config and the text format of a model of the workload."""
  fmt = workload_lib.make_format_of(model)
  if model != 'small':
    return dataclasses.replace(open_pretrained(model).model, dtype=dtype), fmt
  shape = workload_lib.SMALL
  config = TransformerConfig(
    vocab_size=fmt.tokenizer.vocab_size,
    scan_unroll=shape['n_layers'],
    dtype=dtype,
    **{name: size for name, size in shape.items() if name != 'vocab_size'},
  )
  return config, fmt


def train(
  workload: dict,
  dtype: str,
  shape: tuple[int, int],
  steps: int,
  trees: bool = True,
) -> dict:
  """Measures real tokens per second of the train loop, after the warm-up.

  Args:
    workload: what `workload.make_workload` made.
    shape: rows of a batch, and the length of a row in tokens.
    steps: updates that are measured.
    trees: whether chains of a problem share their beginnings.
  """
  config, fmt = make_config(workload['model'], dtype)
  chains = [
    Chain(
      chain['problem'],
      tuple(chain['steps']),
      labels=tuple(StepLabel(float(label)) for label in chain['labels']),
    )
    for chain in workload['train']
  ]
  # TRL trains on every label that it gets.
  targets = TargetConfig(after_first_error='keep')
  rows, row_length = shape
  batching = BatchConfig(
    batch_size=rows,
    row_length=row_length,
    max_steps_per_row=row_length // 8,
    seed=0,
    trees=trees,
  )
  census = take_census(chains, fmt, targets, batching)
  batches = iter(make_batches(census, batching))
  mesh = make_mesh(MESH)
  warmup = workload['warmup_steps']
  optim = OptimConfig(lr=1e-3, warmup=0, schedule='linear', b2=0.999)
  optimizer = make_optimizer(optim, warmup + steps)
  state = init_state(make_init(config, HEAD, optimizer), mesh, 0)
  parameters = matmul_parameters(state.params)
  step_fn = compile_train_step(
    make_train_step(
      ObjectiveConfig(config, HEAD, LossConfig('cross_entropy')),
      optimizer,
      make_schedule(optim, warmup + steps),
    ),
    state,
    mesh,
  )
  tokens, unique, fills = 0, 0, []
  with jax.set_mesh(mesh):
    for step in range(warmup + steps):
      batch = next(batches)
      state, metrics = step_fn(state, put_batch(batch, mesh))
      if step + 1 == warmup:
        jax.block_until_ready(state)
        since = now()
      elif step >= warmup:
        tokens += int(batch['flat_tokens'].sum())
        unique += int((batch['positions'] >= 0).sum())
        fills.append(fill_rate(batch))
    jax.block_until_ready(state)
  seconds = now() - since
  digest = hashlib.sha256()
  for chain in chains:
    digest.update(fmt.encode(chain.problem, chain.steps).tokens.tobytes())
  return {
    'tokens_per_second': tokens / seconds,
    'tokens': tokens,
    'shared': tokens / unique,
    'seconds': seconds,
    'fill': float(np.mean(fills)),
    'parameters': parameters,
    'ids_sha256': digest.hexdigest(),
    'loss': float(metrics['loss']),
  }


def matmul_parameters(params: dict) -> int:
  """Counts all parameters but the embedding, which is looked up."""
  total = sum(x.size for x in jax.tree.leaves(params))
  return total - params['backbone']['embed_tokens'].size


def make_params(model: str, config: TransformerConfig) -> dict:
  """Makes the weights that both sides score with; the head is random."""
  backbone, head = jax.random.split(jax.random.key(0))
  if model == 'small':
    params = jax.jit(init_params, static_argnums=1)(backbone, config)
  else:
    params = open_pretrained(model).load(make_mesh(MESH))
  # Wide enough for scores to spread over [0, 1].
  width = 4.0 if model == 'small' else 0.5
  head = jax.tree.map(
    lambda x: width * x, init_head(head, config.d_model, HEAD)
  )
  return {'backbone': params, 'head': head}


def save_weights(model: str, directory: str) -> None:
  """Writes the folder that AutoModelForTokenClassification opens."""
  config, _ = make_config(model, 'float32')
  params = make_params(model, config)
  save_model(
    directory,
    params['backbone'],
    config,
    'token_classification',
    params['head'],
    options=SaveOptions(max_length=workload_lib.MAX_LENGTH),
  )


def score(workload: dict, dtype: str, name: str, repeats: int) -> dict:
  """Measures candidates per second of Scorer.best_of_n.

  Args:
    name: the scoring task of the workload.
    repeats: times that all candidates are scored.
  """
  config, fmt = make_config(workload['model'], dtype)
  params = make_params(workload['model'], config)
  parameters = matmul_parameters(params)
  params['backbone'] = jax.tree.map(
    lambda x: x.astype(dtype), params['backbone']
  )
  scorer = Scorer(params, config, HEAD, fmt, make_mesh(MESH))
  task = workload['score'][name]
  scorer.best_of_n(task['problem'], task['candidates'])
  times = []
  for _ in range(repeats):
    since = now()
    _, _, scores = scorer.best_of_n(task['problem'], task['candidates'])
    times.append(now() - since)
  return {
    'candidates_per_second': [len(scores) / t for t in times],
    'scores': [s.tolist() for s in scores],
    'fill': scorer.stats.tokens / scorer.stats.padded_tokens,
    # The prompt counts once, as it is computed once.
    'tokens': scorer.stats.tokens // (repeats + 1),
    'parameters': parameters,
  }


def peak() -> dict:
  """Measures the best of several 2048-cube products in GFLOP/s, by dtype."""
  n, rates = 2048, {}
  for dtype in ('float32', 'bfloat16'):
    a = jax.random.normal(jax.random.key(0), (n, n), dtype)
    product = jax.jit(lambda x: x @ x)
    product(a).block_until_ready()
    times = []
    for _ in range(12):
      since = now()
      product(a).block_until_ready()
      times.append(now() - since)
    rates[dtype] = 2e-9 * n**3 / min(times)
  return rates


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('what', choices=('train', 'score', 'weights', 'peak'))
  parser.add_argument('--workload')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--rows', type=int)
  parser.add_argument('--row-length', type=int)
  parser.add_argument('--steps', type=int)
  parser.add_argument('--flat', action='store_true', help='without trees')
  parser.add_argument('--task')
  parser.add_argument('--weights')
  parser.add_argument('--repeats', type=int, default=1)
  parser.add_argument(
    '--devices', type=int, default=cores(), help='as `cpu_devices` in a config'
  )
  args = parser.parse_args()
  jax.config.update('jax_num_cpu_devices', args.devices)
  workload, result = {}, {}
  if args.workload:
    with open(args.workload) as file:
      workload = json.load(file)
  if args.what == 'train':
    shape = args.rows, args.row_length
    result = train(workload, args.dtype, shape, args.steps, not args.flat)
  elif args.what == 'score':
    result = score(workload, args.dtype, args.task, args.repeats)
  elif args.what == 'weights':
    save_weights(workload['model'], args.weights)
  result['peak_gflops'] = peak()
  result['versions'] = {
    name: __import__(name).__version__ for name in ('jax', 'flax', 'grain')
  }
  print(json.dumps(result))


if __name__ == '__main__':
  main()
