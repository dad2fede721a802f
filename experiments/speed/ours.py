"""Our side of run.py: prm_jax's train step and Scorer.best_of_n.

Runs in the Python that has prm_jax. Prints one line of JSON.

    train    pipeline, transfer and train step, as train.fit runs them
    score    Scorer.best_of_n, text in, step scores out
    weights  writes the parameters that score uses under Hugging Face names
    peak     a 2048-cube matrix product
"""

import argparse
import hashlib
import json
import time

import jax
import numpy as np

from prm_jax.chains import Chain, StepLabel
from prm_jax.data.pipeline import fill, make_batches, take_census
from prm_jax.data.targets import TargetConfig
from prm_jax.encoding import StepFormat, make_format
from prm_jax.models import (
  HeadConfig,
  TransformerConfig,
  init_head,
  init_params,
)
from prm_jax.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.scorer import Scorer
from prm_jax.sharding import make_mesh
from prm_jax.train import (
  LossConfig,
  compile_train_step,
  make_train_step,
  put_batch,
)
from prm_jax.train_state import init_state, make_init

HEAD = HeadConfig('two_class')
MESH = {'replica': 1, 'fsdp': -1, 'model': 1}


def make_config(shape: dict) -> tuple[TransformerConfig, StepFormat]:
  fmt = make_format('bytes', shape['max_length'])
  names = ('d_model', 'n_layers', 'n_heads', 'n_kv_heads', 'd_ff', 'norm_eps')
  config = TransformerConfig(
    vocab_size=fmt.tokenizer.vocab_size,
    scan_unroll=shape['n_layers'],
    **{name: shape[name] for name in names},
  )
  return config, fmt


def train(workload: dict, rows: int, row_length: int, steps: int) -> dict:
  """Real tokens per second of the train loop after the warm-up steps."""
  config, fmt = make_config(workload['shape'])
  chains = [
    Chain(
      chain['problem'],
      tuple(chain['steps']),
      labels=tuple(StepLabel(float(label)) for label in chain['labels']),
    )
    for chain in workload['train']
  ]
  # TRL trains on every label it is given.
  targets = TargetConfig(after_first_error='keep')
  census = take_census(chains, fmt, targets)
  batches = iter(
    make_batches(
      chains,
      census,
      fmt,
      targets,
      batch_size=rows,
      row_length=row_length,
      max_steps_per_row=row_length // 16,
      seed=0,
    )
  )
  mesh = make_mesh(MESH)
  warmup = workload['warmup_steps']
  optim = OptimConfig(lr=1e-3, warmup=0, schedule='linear', b2=0.999)
  optimizer = make_optimizer(optim, warmup + steps)
  state = init_state(make_init(config, HEAD, optimizer), mesh, 0)
  parameters = sum(x.size for x in jax.tree.leaves(state.params))
  step_fn = compile_train_step(
    make_train_step(
      config,
      HEAD,
      LossConfig('cross_entropy'),
      optimizer,
      make_schedule(optim, warmup + steps),
      1,
    ),
    state,
    mesh,
  )
  tokens, fills = 0, []
  with jax.set_mesh(mesh):
    for step in range(warmup + steps):
      batch = next(batches)
      state, metrics = step_fn(state, put_batch(batch, mesh))
      if step + 1 == warmup:
        jax.block_until_ready(state)
        since, cpu_since = time.perf_counter(), time.process_time()
      elif step >= warmup:
        tokens += int((batch['segment_ids'] > 0).sum())
        fills.append(fill(batch))
    jax.block_until_ready(state)
  seconds = time.perf_counter() - since
  cpu_seconds = time.process_time() - cpu_since
  digest = hashlib.sha256()
  for chain in chains:
    digest.update(fmt.encode(chain.problem, chain.steps).tokens.tobytes())
  return {
    'tokens_per_second': tokens / seconds,
    'tokens_per_cpu_second': tokens / cpu_seconds,
    'tokens': tokens,
    'seconds': seconds,
    'fill': float(np.mean(fills)),
    'parameters': parameters,
    'ids_sha256': digest.hexdigest(),
    'loss': float(metrics['loss']),
  }


def make_params(config: TransformerConfig) -> dict:
  """The random weights that both sides score with."""

  def init(key):
    backbone, head = jax.random.split(key)
    return {
      'backbone': init_params(backbone, config),
      # Wider than at the start of training, so that scores spread over [0, 1].
      'head': jax.tree.map(
        lambda x: 4.0 * x, init_head(head, config.d_model, HEAD)
      ),
    }

  return jax.jit(init)(jax.random.key(0))


def save_weights(workload: dict, path: str) -> dict:
  """Parameters by the names of LlamaForTokenClassification."""
  config, _ = make_config(workload['shape'])
  params = jax.tree.map(np.asarray, make_params(config))
  backbone, head = params['backbone'], params['head']
  named = {
    'model.embed_tokens.weight': backbone['embed_tokens'],
    'model.norm.weight': backbone['norm']['scale'],
    'score.weight': head['kernel'].T,
    'score.bias': head['bias'],
  }
  stacked = backbone['layers']
  for n in range(config.n_layers):
    prefix = f'model.layers.{n}'
    for norm in ('input_layernorm', 'post_attention_layernorm'):
      named[f'{prefix}.{norm}.weight'] = stacked[norm]['scale'][n]
    for part, outputs in (('self_attn', 'qkvo'), ('mlp', ())):
      for name, leaf in stacked[part].items():
        kernel = leaf['kernel'][n]
        if outputs and name != 'o_proj':  # [D, N, H]
          kernel = kernel.reshape(config.d_model, -1)
        elif name == 'o_proj':  # [N, H, D]
          kernel = kernel.reshape(-1, config.d_model)
        named[f'{prefix}.{part}.{name}.weight'] = kernel.T
  np.savez(path, **{k: np.ascontiguousarray(v) for k, v in named.items()})
  return {}


def score(workload: dict, name: str, repeats: int) -> dict:
  """Candidates per second of Scorer.best_of_n."""
  config, fmt = make_config(workload['shape'])
  scorer = Scorer(make_params(config), config, HEAD, fmt, make_mesh(MESH))
  task = workload['score'][name]
  scorer.best_of_n(task['problem'], task['candidates'])
  times, cpu_times = [], []
  for _ in range(repeats):
    since, cpu_since = time.perf_counter(), time.process_time()
    _, _, scores = scorer.best_of_n(task['problem'], task['candidates'])
    times.append(time.perf_counter() - since)
    cpu_times.append(time.process_time() - cpu_since)
  return {
    'candidates_per_second': [len(scores) / t for t in times],
    'candidates_per_cpu_second': [len(scores) / t for t in cpu_times],
    'scores': [s.tolist() for s in scores],
    'fill': scorer.stats.tokens / scorer.stats.padded_tokens,
  }


def peak() -> dict:
  """Best of several 2048-cube float32 products, in GFLOP/s."""
  n = 2048
  a = jax.random.normal(jax.random.key(0), (n, n))
  product = jax.jit(lambda x: x @ x)
  product(a).block_until_ready()
  times = []
  for _ in range(12):
    since = time.perf_counter()
    product(a).block_until_ready()
    times.append(time.perf_counter() - since)
  return {'gflops': 2e-9 * n**3 / min(times)}


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('what', choices=('train', 'score', 'weights', 'peak'))
  parser.add_argument('--workload')
  parser.add_argument('--rows', type=int)
  parser.add_argument('--row-length', type=int)
  parser.add_argument('--steps', type=int)
  parser.add_argument('--task')
  parser.add_argument('--weights')
  parser.add_argument('--repeats', type=int, default=1)
  args = parser.parse_args()
  workload = {}
  if args.workload:
    with open(args.workload) as file:
      workload = json.load(file)
  if args.what == 'train':
    result = train(workload, args.rows, args.row_length, args.steps)
  elif args.what == 'score':
    result = score(workload, args.task, args.repeats)
  elif args.what == 'weights':
    result = save_weights(workload, args.weights)
  else:
    result = peak()
  result['versions'] = {
    name: __import__(name).__version__ for name in ('jax', 'flax', 'grain')
  }
  print(json.dumps(result))


if __name__ == '__main__':
  main()
