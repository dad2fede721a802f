"""The other side of run.py: TRL's PRMTrainer, and transformers' forward.

Runs in an environment that has torch, transformers and trl (run.py's
`--parity-python`) and does not import prm_jax. Prints one line of JSON.

    train  PRMTrainer.train() as it is, timed from a callback
    score  batches of padded candidates through AutoModelForTokenClassification
    peak   a 2048-cube matrix product
"""

import argparse
import hashlib
import json
import tempfile
import time

import numpy as np
import torch
import transformers
from datasets import Dataset, disable_progress_bars
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import DataCollatorForTokenClassification, TrainerCallback
from trl.experimental.prm import PRMConfig, PRMTrainer

STEP_END, PROBLEM_END = '<step_end>', '<problem_end>'
SPECIALS = ('<pad>', '<bos>', STEP_END, PROBLEM_END)  # ids 0 to 3, as ours


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
  """UTF-8 bytes as ids 4 to 259: the ids of prm_jax's byte tokenizer."""
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


def make_model(shape: dict) -> transformers.PreTrainedModel:
  """A Llama-shaped token classifier with random float32 weights."""
  config = transformers.LlamaConfig(
    vocab_size=shape['vocab_size'],
    hidden_size=shape['d_model'],
    num_hidden_layers=shape['n_layers'],
    num_attention_heads=shape['n_heads'],
    num_key_value_heads=shape['n_kv_heads'],
    intermediate_size=shape['d_ff'],
    max_position_embeddings=shape['max_length'],
    rms_norm_eps=shape['norm_eps'],
    rope_parameters={'rope_type': 'default', 'rope_theta': 10_000.0},
    num_labels=2,
    pad_token_id=0,
    bos_token_id=1,
    classifier_dropout=0.0,
    attn_implementation='sdpa',
    dtype=torch.float32,
  )
  return transformers.AutoModelForTokenClassification.from_config(config)


class Timer(TrainerCallback):
  """Wall and CPU time at the end of every optimizer step."""

  def __init__(self):
    self.ends, self.cpu_ends = [], []

  def on_step_end(self, args, state, control, **kwargs):
    self.ends.append(time.perf_counter())
    self.cpu_ends.append(time.process_time())


class CountingCollator(DataCollatorForTokenClassification):
  """The default collator; remembers real and padded tokens of each batch."""

  def torch_call(self, features):
    batch = super().torch_call(features)
    self.counts.append(
      (int(batch['attention_mask'].sum()), batch['attention_mask'].numel())
    )
    return batch


def train(workload: dict, batch_size: int, sampling: str, steps: int) -> dict:
  """Real tokens per second of PRMTrainer.train() after the warm-up steps."""
  tokenizer, shape = byte_tokenizer(), workload['shape']
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
  model = make_model(shape)
  with tempfile.TemporaryDirectory() as out:
    trainer = PRMTrainer(
      model=model,
      args=PRMConfig(
        output_dir=out,
        max_length=shape['max_length'],
        step_separator=STEP_END,
        per_device_train_batch_size=batch_size,
        train_sampling_strategy=sampling,
        max_steps=warmup + steps,
        # Its defaults are bfloat16 and recomputed activations; the comparison
        # is float32, and recomputing would only slow it down.
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
  cpu_seconds = timer.cpu_ends[last] - timer.cpu_ends[first]
  return {
    'tokens_per_second': float(counts[:, 0].sum() / seconds),
    'tokens_per_cpu_second': float(counts[:, 0].sum() / cpu_seconds),
    'tokens': int(counts[:, 0].sum()),
    'seconds': seconds,
    'fill': float(counts[:, 0].sum() / counts[:, 1].sum()),
    'parameters': sum(p.numel() for p in model.parameters()),
    'ids_sha256': digest.hexdigest(),
  }


def load_weights(model: transformers.PreTrainedModel, path: str) -> None:
  """Our parameters by Hugging Face name; every one of them must be there."""
  state = {
    name: torch.from_numpy(array) for name, array in np.load(path).items()
  }
  model.load_state_dict(state, strict=True)


def score(
  workload: dict, name: str, weights: str, sizes: list[int], repeats: int
) -> dict:
  """Candidates per second at each batch size, text in, step scores out."""
  tokenizer = byte_tokenizer()
  model = make_model(workload['shape']).eval()
  load_weights(model, weights)
  task = workload['score'][name]
  separator = tokenizer.convert_tokens_to_ids(STEP_END)
  texts = [
    '<bos>' + task['problem'] + PROBLEM_END + ''.join(s + STEP_END for s in c)
    for c in task['candidates']
  ]

  def run(size: int) -> list[list[float]]:
    encoded = tokenizer(texts, add_special_tokens=False)['input_ids']
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    scores = [[]] * len(encoded)
    for start in range(0, len(order), size):
      members = order[start : start + size]
      batch = tokenizer.pad(
        {'input_ids': [encoded[i] for i in members]}, return_tensors='pt'
      )
      right = model(**batch).logits.softmax(-1)[..., 1]
      for row, i in enumerate(members):
        ends = batch['input_ids'][row] == separator
        scores[i] = right[row][ends].tolist()
    return scores

  rates, cpu_rates = {}, {}
  with torch.inference_mode():
    for size in sizes:
      run(size)
      times, cpu_times = [], []
      for _ in range(repeats):
        since, cpu_since = time.perf_counter(), time.process_time()
        scores = run(size)
        times.append(time.perf_counter() - since)
        cpu_times.append(time.process_time() - cpu_since)
      rates[size] = [len(texts) / t for t in times]
      cpu_rates[size] = [len(texts) / t for t in cpu_times]
  return {
    'candidates_per_second': rates,
    'candidates_per_cpu_second': cpu_rates,
    'scores': scores,
  }


def peak() -> dict:
  """Best of several 2048-cube float32 products, in GFLOP/s."""
  a, n = torch.randn(2048, 2048), 2048
  times = []
  for _ in range(12):
    since = time.perf_counter()
    torch.mm(a, a)
    times.append(time.perf_counter() - since)
  return {'gflops': 2e-9 * n**3 / min(times)}


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('what', choices=('train', 'score', 'peak'))
  parser.add_argument('--workload')
  parser.add_argument('--threads', type=int, required=True)
  parser.add_argument('--batch-size', type=int)
  parser.add_argument('--sampling', default='random')
  parser.add_argument('--steps', type=int)
  parser.add_argument('--task')
  parser.add_argument('--weights')
  parser.add_argument('--sizes', type=int, nargs='+')
  parser.add_argument('--repeats', type=int, default=1)
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  disable_progress_bars()
  transformers.logging.set_verbosity_error()
  if args.what == 'peak':
    result = peak()
  else:
    with open(args.workload) as file:
      workload = json.load(file)
    if args.what == 'train':
      result = train(workload, args.batch_size, args.sampling, args.steps)
    else:
      result = score(
        workload, args.task, args.weights, args.sizes, args.repeats
      )
  result['versions'] = {
    name: __import__(name).__version__
    for name in ('torch', 'transformers', 'trl')
  }
  print(json.dumps(result))


if __name__ == '__main__':
  main()
