"""The other side of run.py: TRL's PRMTrainer, and transformers' forward pass.

Runs in an environment that has torch, transformers and trl (run.py's
`--parity-python`), and does not import prm_jax. Prints one line of JSON.

    train  PRMTrainer.train() as it is, timed by a callback
    step   forward, backward and AdamW on batches of similar lengths
    score  batches of padded candidates through AutoModelForTokenClassification
    peak   a 2048-cube matrix product, in each dtype
"""

import argparse
import hashlib
import json
import os
import tempfile
import time

import numpy as np
import torch
import transformers
from datasets import Dataset, disable_progress_bars
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import DataCollatorForTokenClassification, TrainerCallback
from trl.experimental.prm import PRMConfig, PRMTrainer

# The clock of run.py: seconds, or CPU seconds where other work runs beside it.
now = {'wall': time.perf_counter, 'cpu': time.process_time}[
  os.environ.get('SPEED_CLOCK', 'wall')
]
STEP_END, PROBLEM_END = '<step_end>', '<problem_end>'
SPECIALS = ('<pad>', '<bos>', STEP_END, PROBLEM_END)  # ids 0 to 3, as ours


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
  """Makes the byte tokenizer of prm_jax: UTF-8 bytes are ids 4 to 259."""
  # GPT-2's map from a byte to the printable character that stands for it.
  plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
  spare = iter(range(256, 512))
  characters = [chr(b if b in plain else next(spare)) for b in range(256)]
  vocabulary = {token: i for i, token in enumerate((*SPECIALS, *characters))}
  backend = Tokenizer(models.BPE(vocabulary, merges=[]))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(
    [AddedToken(token, special=True, normalized=False) for token in SPECIALS]
  )
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token='<pad>', bos_token='<bos>'
  )


def open_model(
  folder: str, dtype: str = 'float32'
) -> transformers.PreTrainedModel:
  """Opens the token classifier that our side wrote."""
  config = transformers.AutoConfig.from_pretrained(folder)
  config.classifier_dropout = 0.0
  return transformers.AutoModelForTokenClassification.from_pretrained(
    folder,
    config=config,
    dtype=getattr(torch, dtype),
    attn_implementation='sdpa',
  )


class Timer(TrainerCallback):
  """Notes the time at the end of every optimizer step."""

  def __init__(self):
    self.ends = []

  def on_step_end(self, args, state, control, **kwargs):
    self.ends.append(now())


class CountingCollator(DataCollatorForTokenClassification):
  """The default collator, which also counts real and padded tokens."""

  def torch_call(self, features):
    batch = super().torch_call(features)
    self.counts.append(
      (int(batch['attention_mask'].sum()), batch['attention_mask'].numel())
    )
    return batch


def train(
  workload: dict, folder: str, batch_size: int, sampling: str, steps: int
) -> dict:
  """Measures real tokens per second of PRMTrainer.train(), after the warm-up.

  Args:
    workload: what `workload.make_workload` made.
    folder: folder of the model.
    sampling: TRL's way to draw a batch.
    steps: updates that are measured.
  """
  tokenizer = byte_tokenizer()
  torch.manual_seed(0)
  dataset = Dataset.from_list(
    [
      {
        'prompt': chain['problem'] + PROBLEM_END,
        'completions': chain['steps'],
        'labels': chain['labels'],
      }
      for chain in workload['train']
    ]
  )
  warmup = workload['warmup_steps']
  collator = CountingCollator(tokenizer)
  collator.counts = []
  timer = Timer()
  model = open_model(folder)
  with tempfile.TemporaryDirectory() as out:
    trainer = PRMTrainer(
      model=model,
      args=PRMConfig(
        output_dir=out,
        max_length=workload['max_length'],
        step_separator=STEP_END,
        per_device_train_batch_size=batch_size,
        train_sampling_strategy=sampling,
        max_steps=warmup + steps,
        # The defaults are bfloat16 and recomputed activations. We compare
        # float32, and recomputing would only slow it down.
        bf16=False,
        gradient_checkpointing=False,
        optim='adamw_torch_fused',
        learning_rate=1e-3,
        weight_decay=0.01,
        report_to='none',
        save_strategy='no',
        eval_strategy='no',
        logging_steps=20,
        disable_tqdm=True,
        use_cpu=True,
      ),
      train_dataset=dataset,
      processing_class=tokenizer,
      data_collator=collator,
      callbacks=[timer],
    )
    trainer.train()
  ids = trainer.train_dataset['input_ids']
  digest = hashlib.sha256()
  for row in ids:
    digest.update(np.asarray(row, np.int32).tobytes())
  counts = np.asarray(collator.counts[warmup : warmup + steps])
  first, last = warmup - 1, warmup + steps - 1
  seconds = timer.ends[last] - timer.ends[first]
  return {
    'tokens_per_second': float(counts[:, 0].sum() / seconds),
    'tokens': int(counts[:, 0].sum()),
    'seconds': seconds,
    'fill': float(counts[:, 0].sum() / counts[:, 1].sum()),
    'parameters': matmul_parameters(model),
    'ids_sha256': digest.hexdigest(),
  }


def matmul_parameters(model: transformers.PreTrainedModel) -> int:
  """Counts all parameters but the embedding, which is looked up."""
  total = sum(p.numel() for p in model.parameters())
  return total - model.get_input_embeddings().weight.numel()


def padded(chains: list[dict]) -> dict[str, torch.Tensor]:
  """Makes input_ids and attention_mask of chains, padded on the right."""
  tokens = [torch.tensor(chain['tokens']) for chain in chains]
  pad = torch.nn.utils.rnn.pad_sequence
  return {
    'input_ids': pad(tokens, batch_first=True),
    'attention_mask': pad([torch.ones_like(t) for t in tokens], True),
  }


def step(
  workload: dict, folder: str, dtype: str, batch_tokens: int, steps: int
) -> dict:
  """Measures real tokens per second of training steps, after the warm-up.

  A batch has chains of neighbouring lengths, as many as have at most
  `batch_tokens` padded tokens. bfloat16 is autocast over float32 weights.
  """
  chains = sorted(workload['train'], key=lambda c: len(c['tokens']))
  batches = [[]]
  for chain in chains:
    if (len(batches[-1]) + 1) * len(chain['tokens']) > batch_tokens:
      batches.append([])
    batches[-1].append(chain)
  warmup = workload['warmup_steps']
  # Batches evenly spaced over the lengths, in random order.
  chosen = np.linspace(0, len(batches) - 1, warmup + steps + 2).astype(int)[
    1:-1
  ]
  chosen = np.random.default_rng(0).permutation(chosen)
  model = open_model(folder).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
  tokens = computed = 0
  for n, which in enumerate(chosen):
    if n == warmup:
      since = now()
    batch = padded(batches[which])
    labels = torch.full_like(batch['input_ids'], -100)
    for row, chain in enumerate(batches[which]):
      labels[row, chain['step_ends']] = torch.tensor(chain['labels']).long()
    with torch.autocast('cpu', torch.bfloat16, enabled=dtype == 'bfloat16'):
      loss = model(**batch, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if n >= warmup:
      tokens += int(batch['attention_mask'].sum())
      computed += batch['attention_mask'].numel()
  return {
    'tokens_per_second': tokens / (now() - since),
    'fill': tokens / computed,
    'parameters': matmul_parameters(model),
    'loss': float(loss.detach()),
  }


def score(
  workload: dict,
  folder: str,
  dtype: str,
  name: str,
  sizes: list[int],
  repeats: int,
) -> dict:
  """Measures candidates per second at the best batch size, from ids to scores.

  Args:
    name: the scoring task of the workload.
    sizes: batch sizes to choose the best from.
    repeats: times that all candidates are scored.
  """
  model = open_model(folder, dtype).eval()
  chains = workload['score'][name]['encoded']
  order = sorted(range(len(chains)), key=lambda i: len(chains[i]['tokens']))

  def run(size: int, order: list[int]) -> list[list[float]]:
    scores = [[]] * len(chains)
    for start in range(0, len(order), size):
      members = order[start : start + size]
      batch = padded([chains[i] for i in members])
      right = model(**batch).logits.float().softmax(-1)[..., 1]
      for row, i in enumerate(members):
        scores[i] = right[row][chains[i]['step_ends']].tolist()
    return scores

  # The best size is found on at least two batches of the largest size.
  some = order[:: max(1, len(order) // (2 * max(sizes)))]
  with torch.inference_mode():
    run(sizes[0], some[-sizes[0] :])
    trials = {}
    for size in sizes:
      since = now()
      run(size, some)
      trials[size] = now() - since
    best, times = min(trials, key=trials.get), []
    for _ in range(repeats):
      since = now()
      scores = run(best, order)
      times.append(now() - since)
  return {
    'candidates_per_second': [len(chains) / t for t in times],
    'best_size': best,
    'scores': scores,
    'tokens': sum(len(chain['tokens']) for chain in chains),
    'parameters': matmul_parameters(model),
  }


def peak() -> dict:
  """Measures the best of several 2048-cube products in GFLOP/s, by dtype."""
  n, rates = 2048, {}
  for dtype in ('float32', 'bfloat16'):
    a = torch.randn(n, n, dtype=getattr(torch, dtype))
    times = []
    for _ in range(12):
      since = now()
      torch.mm(a, a)
      times.append(now() - since)
    rates[dtype] = 2e-9 * n**3 / min(times)
  return rates


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('what', choices=('train', 'step', 'score', 'peak'))
  parser.add_argument('--workload')
  parser.add_argument('--threads', type=int, required=True)
  parser.add_argument('--weights')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--batch-size', type=int)
  parser.add_argument('--batch-tokens', type=int)
  parser.add_argument('--sampling', default='random')
  parser.add_argument('--steps', type=int)
  parser.add_argument('--task')
  parser.add_argument('--sizes', type=int, nargs='+')
  parser.add_argument('--repeats', type=int, default=1)
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  disable_progress_bars()
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  workload, result = {}, {}
  if args.workload:
    with open(args.workload) as file:
      workload = json.load(file)
  if args.what == 'train':
    result = train(
      workload, args.weights, args.batch_size, args.sampling, args.steps
    )
  elif args.what == 'step':
    result = step(
      workload, args.weights, args.dtype, args.batch_tokens, args.steps
    )
  elif args.what == 'score':
    result = score(
      workload, args.weights, args.dtype, args.task, args.sizes, args.repeats
    )
  result['peak_gflops'] = peak()
  result['versions'] = {
    name: __import__(name).__version__
    for name in ('torch', 'transformers', 'trl')
  }
  print(json.dumps(result))


if __name__ == '__main__':
  main()
