"""A policy in Hugging Face's files writes there what it writes here."""

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed')
transformers = pytest.importorskip(
  'transformers', reason='transformers is not installed'
)

from prm_jax import export  # noqa: E402
from prm_jax.inference.loading import load_policy  # noqa: E402
from prm_jax.inference.sampler import SamplingConfig  # noqa: E402
from prm_jax.inference.writer import SampleRequest  # noqa: E402
from tests.shared import command_line  # noqa: E402

PROBLEMS = ('mod 10 : 7 * 3 + 4 - 4 * 1 + 8', 'mod 10 : 0 - 3 * 4 + 2 * 2 + 9')


def test_the_likeliest_chain_is_theirs(tmp_path):
  done = command_line.run(
    '--config=configs/policy_math.py:tiny',
    '--config.train.steps=60',
    f'--workdir={tmp_path / "run"}',
  )
  assert done.returncode == 0, done.stderr
  export.export(str(tmp_path / 'run'), tmp_path / 'out', 'lm')
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  greedy = SamplingConfig(temperature=0.0, slots=2, max_tokens=20)
  policy = load_policy(tmp_path / 'run', greedy)
  assert model.generation_config.eos_token_id == policy.format.end
  prompts = [policy.format.encode_prompt(problem) for problem in PROBLEMS]
  ours = policy.write([SampleRequest(tuple(prompt), 0) for prompt in prompts])
  for prompt, written in zip(prompts, ours, strict=True):
    with torch.no_grad():
      theirs = model.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False
      )
    # Ours stops at a step without text, too.
    count = len(written.tokens)
    assert count > 2
    theirs = theirs[0, len(prompt) :][:count].numpy()
    np.testing.assert_array_equal(theirs, written.tokens)
