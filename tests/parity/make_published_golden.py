"""Golden ids and scores of the published PRMs, by torch and transformers.

    python -m tests.parity.make_published_golden

needs torch, transformers and safetensors, and nothing of prm_jax. Each score
is computed as the authors' own code does it: the whole text tokenised at once,
places found by token id, softmax over the logits of a whole vocabulary row.
"""

import json
import pathlib
import tempfile

import torch
from safetensors.torch import load_file
from transformers import (
  AutoConfig,
  AutoModelForCausalLM,
  AutoModelForTokenClassification,
  PreTrainedTokenizerFast,
  Qwen2Model,
)

from tests.shared.published_models import CHAINS, STYLES, write_model

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / 'inference' / 'golden'


def qwen_prm(directory, tokenizer, problem, steps):
  """The code of the model card of Qwen2.5-Math-PRM-7B."""
  tensors = load_file(directory / 'model.safetensors')
  config = AutoConfig.from_pretrained(directory)
  backbone = Qwen2Model(config)
  backbone.load_state_dict(
    {
      name.removeprefix('model.'): value
      for name, value in tensors.items()
      if name.startswith('model.')
    }
  )
  D = config.hidden_size
  score = torch.nn.Sequential(
    torch.nn.Linear(D, D), torch.nn.ReLU(), torch.nn.Linear(D, 2)
  )
  score.load_state_dict(
    {
      name.removeprefix('score.'): value
      for name, value in tensors.items()
      if name.startswith('score.')
    }
  )
  messages = [
    {
      'role': 'system',
      'content': 'Please reason step by step, and put your final answer '
      'within \\boxed{}.',
    },
    {'role': 'user', 'content': problem},
    {
      'role': 'assistant',
      'content': '<extra_0>'.join(steps) + '<extra_0>',
    },
  ]
  text = tokenizer.apply_chat_template(
    messages, tokenize=False, add_generation_prompt=False
  )
  ids = tokenizer.encode(text, return_tensors='pt')
  logits = score(backbone.eval()(ids).last_hidden_state)
  here = ids[0] == tokenizer.encode('<extra_0>')[0]
  return ids[0], logits.softmax(-1)[0, here, 1]


def skywork(directory, tokenizer, problem, steps):
  """prepare_input of skywork-o1-prm-inference, and its value head."""
  ids = tokenizer.encode(tokenizer.bos_token + problem + '\n')
  newline = tokenizer.encode('\n')[-1]
  flags = [0] * len(ids)
  for step in steps:
    step_ids = [*tokenizer.encode(step), newline]
    ids += step_ids
    flags += [0] * (len(step_ids) - 1) + [1]
  model = AutoModelForCausalLM.from_pretrained(directory, dtype='float32')
  head = load_file(directory / 'model.safetensors')
  value_head = torch.nn.Linear(model.config.hidden_size, 1)
  value_head.weight.data = head['v_head.summary.weight']
  value_head.bias.data = head['v_head.summary.bias']
  ids = torch.tensor([ids])
  hidden = model.eval()(ids, output_hidden_states=True).hidden_states[-1]
  values = value_head(hidden)[0, :, 0]
  return ids[0], values[torch.tensor(flags) == 1].sigmoid()


def math_shepherd(directory, tokenizer, problem, steps):
  """The code of the model card of math-shepherd-mistral-7b-prm."""
  candidates = tokenizer.encode('+ -')[1:]
  tag = tokenizer.encode('ки')[-1]
  output = '\n'.join(f'{step} ки' for step in steps)
  ids = torch.tensor([tokenizer.encode(f'{problem} {output}')])
  model = AutoModelForCausalLM.from_pretrained(directory, dtype='float32')
  logits = model.eval()(ids).logits[:, :, candidates]
  return ids[0], logits.softmax(-1)[:, :, 0][ids == tag]


def rlhflow(directory, tokenizer, problem, steps):
  """The loop of RLHFlow's prm_evaluate.py: one forward pass per step."""
  plus = tokenizer.encode('+')[-1]
  minus = tokenizer.encode('-')[-1]
  model = AutoModelForCausalLM.from_pretrained(directory, dtype='float32')
  steps = [step.strip() for step in steps]
  conversation, scores = [], []
  for k, step in enumerate(steps):
    text = step if k else problem + ' ' + step
    conversation.append({'content': text, 'role': 'user'})
    conversation.append({'content': '+', 'role': 'assistant'})
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False)
    ids = tokenizer.encode(rendered, add_special_tokens=False)
    ids = torch.tensor([ids])
    logits = model.eval()(ids).logits[:, -3, [plus, minus]]
    scores.append(logits.softmax(-1)[0, 0])
  return ids[0], torch.stack(scores)


def trl(directory, tokenizer, problem, steps):
  """tokenize_row of TRL's PRMTrainer, and the second label's probability."""
  ids = tokenizer(problem, add_special_tokens=False)['input_ids']
  ids = [tokenizer.bos_token_id, *ids]
  ends = []
  for step in steps:
    ids += tokenizer(step, add_special_tokens=False)['input_ids']
    ids += tokenizer.encode('\n', add_special_tokens=False)
    ends.append(len(ids) - 1)
  model = AutoModelForTokenClassification.from_pretrained(
    directory, dtype='float32'
  )
  ids = torch.tensor([ids])
  return ids[0], model.eval()(ids).logits.softmax(-1)[0, ends, 1]


REFERENCES = {
  'qwen_prm': qwen_prm,
  'skywork': skywork,
  'math_shepherd': math_shepherd,
  'rlhflow': rlhflow,
  'trl': trl,
}


@torch.no_grad()
def reference(style, directory, problem, steps):
  """Ids of the whole text and scores of the steps, as lists."""
  tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
  ids, scores = REFERENCES[style](directory, tokenizer, problem, steps)
  assert len(scores) == len(steps)
  return ids.tolist(), scores.tolist()


def main():
  GOLDEN.mkdir(parents=True, exist_ok=True)
  for style in STYLES:
    with tempfile.TemporaryDirectory() as folder:
      directory = pathlib.Path(folder)
      write_model(style, directory)
      records = []
      for problem, steps in CHAINS:
        ids, scores = reference(style, directory, problem, steps)
        scores = [round(score, 7) for score in scores]
        records.append(
          {'problem': problem, 'steps': steps, 'ids': ids, 'scores': scores}
        )
    (GOLDEN / f'{style}.jsonl').write_text(
      '\n'.join(json.dumps(record) for record in records) + '\n'
    )


if __name__ == '__main__':
  main()
