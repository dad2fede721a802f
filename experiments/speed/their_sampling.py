"""`transformers.generate` on the task of sampling.py, in its own process.

Reads a JSON task and prints one line of JSON: the new tokens and the seconds.
"""

import argparse
import json
import os
import time

import torch
import transformers

on_cpu = os.environ.get('SPEED_CLOCK') == 'cpu'
now = time.process_time if on_cpu else time.perf_counter


class Lengths(transformers.StoppingCriteria):
  """Ends every row after as many new tokens as the task says."""

  def __init__(self, prompt: int, lengths: list[int]):
    self.ends = prompt + torch.tensor(lengths)

  def __call__(self, input_ids, scores, **kwargs):
    return input_ids.shape[1] >= self.ends


def run(model: transformers.PreTrainedModel, batches: list[dict]) -> float:
  """Returns the seconds that all batches take."""
  began = now()
  for batch in batches:
    prompts = torch.tensor(batch['prompts'])
    lengths = batch['lengths']
    out = model.generate(
      prompts,
      attention_mask=torch.ones_like(prompts),
      do_sample=True,
      temperature=1.0,
      top_k=0,
      top_p=1.0,
      num_return_sequences=len(lengths) // len(prompts),
      max_new_tokens=max(lengths),
      stopping_criteria=[Lengths(prompts.shape[1], lengths)],
      eos_token_id=None,
      pad_token_id=0,
    )
    assert out.shape[1] == prompts.shape[1] + max(lengths)
  return now() - began


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--task', required=True)
  parser.add_argument('--threads', type=int, required=True)
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(0)
  with open(args.task) as file:
    task = json.load(file)
  names = {
    'd_model': 'hidden_size',
    'n_layers': 'num_hidden_layers',
    'n_heads': 'num_attention_heads',
    'n_kv_heads': 'num_key_value_heads',
    'd_ff': 'intermediate_size',
  }
  shape = {names.get(k, k): v for k, v in task['model'].items()}
  config = transformers.LlamaConfig(
    **shape, tie_word_embeddings=True, attn_implementation='sdpa'
  )
  model = transformers.LlamaForCausalLM(config).eval()
  with torch.inference_mode():
    run(model, task['warmup'])
    seconds = run(model, task['batches'])
  tokens = sum(sum(batch['lengths']) for batch in task['batches'])
  result = {
    'tokens': tokens,
    'seconds': seconds,
    'parameters': sum(p.numel() for p in model.parameters()),
    'versions': {'torch': torch.__version__}
    | {'transformers': transformers.__version__},
  }
  print(json.dumps(result))


if __name__ == '__main__':
  main()
