"""`rl.reward_fn` in TRL's own loop: it learns from our rewards."""

import importlib
import pathlib
import re

import numpy as np
import pytest

REASON = "needs the extra parity: pip install -e '.[parity]'"
for package in ('torch', 'transformers', 'trl'):
  pytest.importorskip(package, reason=REASON)

import datasets  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402

import prm_jax  # noqa: E402
from prm_jax import rl  # noqa: E402
from prm_jax.data.tokenizer import PAD, PROBLEM_END, STEP_END  # noqa: E402
from prm_jax.rl import adapters  # noqa: E402
from tests.shared import command_line  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
SPEED = ROOT / 'experiments' / 'speed'
DOCS = ROOT / 'docs' / 'rl.md'
PROBLEM = 'mod 10 : 7 * 3 + 4 - 4 * 1 + 8'
LONG = f'{PROBLEM}{" + 1" * 20}'  # longer than the PRM's window
GROUP, STEPS, LONGEST = 4, 2, 24


@pytest.fixture(scope='module')
def prm(tmp_path_factory):
  """The workdir of a PRM."""
  workdir = tmp_path_factory.mktemp('prm')
  done = command_line.run(*command_line.SMALL, f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  return workdir


@pytest.fixture
def their_rl(monkeypatch):
  monkeypatch.syspath_prepend(SPEED)
  return importlib.import_module('their_rl')


def make_policy(vocabulary):
  """Knows nothing, and writes at random."""
  torch.manual_seed(0)
  return transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
      vocab_size=vocabulary,
      hidden_size=32,
      num_hidden_layers=1,
      num_attention_heads=2,
      num_key_value_heads=2,
      intermediate_size=64,
      pad_token_id=PAD,
      eos_token_id=PROBLEM_END,
    )
  )


def make_trainer(kind, policy, reward, tokenizer, folder):
  """Makes a trainer of a kind that learns PROBLEM and LONG."""
  return kind(
    policy,
    reward,
    trl.GRPOConfig(
      str(folder),
      max_steps=STEPS,
      num_generations=GROUP,
      num_generations_eval=2,
      per_device_train_batch_size=2 * GROUP,
      per_device_eval_batch_size=2,
      max_completion_length=LONGEST,
      # Steps of some words.
      generation_kwargs={'sequence_bias': [[[STEP_END], 3.0]]},
      learning_rate=1e-2,
      bf16=False,
      use_cpu=True,
      logging_steps=1,
      log_completions=True,
      save_strategy='no',
      report_to='none',
    ),
    datasets.Dataset.from_dict({'prompt': [PROBLEM, LONG]}),
    processing_class=tokenizer,
  )


def test_grpo_learns_from_our_rewards(prm, their_rl, tmp_path):
  scorer = prm_jax.load(prm)
  tokenizer = their_rl.make_tokenizer()
  prompt = scorer.format.encode_prompt(PROBLEM)
  assert tokenizer(PROBLEM)['input_ids'] == prompt
  policy = make_policy(len(tokenizer))
  before = {k: v.clone() for k, v in policy.state_dict().items()}
  lowest = adapters.trl(rl.reward_fn(prm), name='lowest')
  trainer = make_trainer(trl.GRPOTrainer, policy, lowest, tokenizer, tmp_path)
  trainer.train()

  tables = [pd.read_parquet(p) for p in sorted(tmp_path.rglob('*.parquet'))]
  assert len(tables) == trainer.state.global_step == STEPS
  counts = set()
  for table, logged in zip(tables, trainer.state.log_history, strict=False):
    expected = []
    for problem, completion in zip(
      table['prompt'], table['completion'], strict=True
    ):
      steps = [s.strip() for s in completion.split('\n') if s.strip()]
      counts.add(len(steps))
      scores = scorer.score(problem, steps) if problem != LONG else [np.nan]
      expected.append(min(scores) if steps else 0.0)
    found = table['lowest'].to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert logged['rewards/lowest/mean'] == pytest.approx(np.nanmean(found))
    fits = table['prompt'] == PROBLEM
    assert fits.sum() == GROUP == (~fits).sum()
    assert found[fits].std() > 0
    relative = found[fits] - found[fits].mean()
    relative /= found[fits].std(ddof=1) + 1e-4
    np.testing.assert_allclose(table['advantage'][fits], relative, atol=1e-4)
    # Chains that the PRM cannot read teach nothing.
    assert (table['advantage'][~fits] == 0).all()
  assert max(counts) > 2
  after = policy.state_dict()
  assert all(torch.isfinite(v).all() for v in after.values())
  assert any(not torch.equal(before[k], v) for k, v in after.items())


def trainer_of_the_docs(prm):
  """The class that docs/rl.md shows; its PRM is that of the tests."""
  blocks = re.findall(r'^```python\n(.*?)^```', DOCS.read_text(), re.M | re.S)
  [code] = [block for block in blocks if 'class StepGRPOTrainer' in block]
  code, call = code.rstrip().rsplit('\n', 1)
  assert call.startswith('StepGRPOTrainer(model, ')
  found = {}
  exec(code.replace('/tmp/prm_math', str(prm)), found)
  return found['StepGRPOTrainer']


def test_grpo_credits_steps(prm, their_rl, tmp_path):
  """The trainer of docs/rl.md adds each step's advantage to its tokens."""
  scorer = prm_jax.load(prm)
  tokenizer = their_rl.make_tokenizer()
  batches = []

  class Recorded(trainer_of_the_docs(prm)):
    def _generate_and_score_completions(self, inputs):
      batch = super()._generate_and_score_completions(inputs)
      batches.append(([x['prompt'] for x in inputs], batch))
      return batch

  def is_short(completions, **_):
    return [float(len(each) < 40) for each in completions]

  policy = make_policy(len(tokenizer))
  before = {k: v.clone() for k, v in policy.state_dict().items()}
  trainer = make_trainer(Recorded, policy, is_short, tokenizer, tmp_path)
  trainer.train()
  assert len(batches) == STEPS
  assert any(
    not torch.equal(before[k], v) for k, v in policy.state_dict().items()
  )
  for prompts, batch in batches:
    tokens = batch['completion_ids'].tolist()
    found = batch['advantages'].numpy()
    assert found.shape == batch['completion_ids'].shape
    for problem in (PROBLEM, LONG):
      rows = [i for i, prompt in enumerate(prompts) if prompt == problem]
      texts = [
        tokenizer.decode(tokens[i], skip_special_tokens=True) for i in rows
      ]
      short = np.array(is_short(texts))
      alone = (short - short.mean()) / (short.std(ddof=1) + 1e-4)
      added = found[rows] - alone[:, None]
      if problem == LONG:  # the PRM cannot read it
        np.testing.assert_allclose(added, 0, atol=1e-5)
        continue
      # The policy knows nothing, so padding may stand in the middle, too.
      lengths = batch['completion_mask'].sum(1).tolist()
      rows_of_tokens = [tokens[i][: lengths[i]] for i in rows]
      pieces = [
        adapters.token_texts(
          row, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
        )
        for row in rows_of_tokens
      ]
      assert [''.join(row) for row in pieces] == texts
      scores = [
        scorer.score(problem, steps_of(text)).tolist() for text in texts
      ]
      expected = adapters.token_advantages(scores, pieces, GROUP)
      for row, values in zip(added, expected, strict=True):
        assert np.any(values)
        wanted = np.zeros_like(row)
        wanted[: len(values)] = values
        np.testing.assert_allclose(row, 0.5 * wanted, atol=1e-4)
      # The first token belongs to the first step, which every chain has.
      first = np.array([each[0] for each in scores])
      centred = first - first.mean()
      at_first = added[:, 0]
      np.testing.assert_allclose(
        at_first / at_first.std(), centred / centred.std(), atol=1e-2
      )
  # Its evaluation has other groups, and learns nothing.
  found = trainer.evaluate(datasets.Dataset.from_dict({'prompt': [PROBLEM]}))
  assert 0 <= found['eval_reward'] <= 1


def steps_of(text):
  return [step.strip() for step in text.split('\n') if step.strip()]
