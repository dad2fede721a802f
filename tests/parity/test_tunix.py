"""The step rewards of docs/rl.md in tunix's own GRPO loop."""

import pathlib
import re

import numpy as np
import pytest

REASON = 'needs tunix: pip install google-tunix==0.1.7, in its own environment'
pytest.importorskip('tunix', reason=REASON)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.generate.tokenizer_adapter import TokenizerAdapter  # noqa: E402
from tunix.rl import rl_cluster  # noqa: E402
from tunix.rl.grpo.grpo_learner import GRPOConfig  # noqa: E402
from tunix.rl.rollout.base_rollout import RolloutConfig  # noqa: E402
from tunix.tests import test_common  # noqa: E402

from prm_jax import rl  # noqa: E402

DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'rl.md'
GROUP, BATCHES = 4, 2
PROMPTS = ['input string', 'hello world']


def step_rewards(pairs):
  """Pays a word by its length; the words of tunix's toy stand for steps."""
  return [
    [float(len(word)) for word in written.split(' ') if word]
    for _, written in pairs
  ]


def learner_of_the_docs(monkeypatch):
  """The class that docs/rl.md shows, with `step_rewards` as its PRM."""
  blocks = re.findall(r'^```python\n(.*?)^```', DOCS.read_text(), re.M | re.S)
  [code] = [block for block in blocks if 'class StepGRPOLearner' in block]
  monkeypatch.setattr(rl, 'reward_fn', lambda path, separator: step_rewards)
  found = {}
  exec(code.replace(r"separator='\n'", "separator=' '"), found)
  return found['StepGRPOLearner']


def make_cluster():
  vocabulary = test_common.MockVocab()
  config = test_common.ModelConfig(vocab_size=vocabulary.GetPieceSize())
  policy, reference = (
    test_common.ToyTransformer(config=config, rngs=nnx.Rngs(0))
    for _ in range(2)
  )
  mesh = jax.sharding.Mesh([jax.devices()[:1]], ('fsdp', 'tp'))
  roles = rl_cluster.Role
  return rl_cluster.RLCluster(
    actor=policy,
    reference=reference,
    tokenizer=TokenizerAdapter(vocabulary),
    cluster_config=rl_cluster.ClusterConfig(
      role_to_mesh={
        role: mesh for role in (roles.ACTOR, roles.REFERENCE, roles.ROLLOUT)
      },
      rollout_engine='vanilla',
      training_config=rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.sgd(1e-2),
        eval_every_n_steps=100,
        max_steps=BATCHES,
      ),
      rollout_config=RolloutConfig(
        max_tokens_to_generate=8, max_prompt_length=8, kv_cache_size=64
      ),
    ),
  ), reference


def test_grpo_credits_steps(monkeypatch):
  found = []

  class Recorded(learner_of_the_docs(monkeypatch)):
    def _generate_and_compute_advantage(self, *args, **kwargs):
      example = super()._generate_and_compute_advantage(*args, **kwargs)
      found.append(example)
      return example

  def same_for_all(prompts, completions, **_):
    return [1.0] * len(completions)

  cluster, reference = make_cluster()
  learner = Recorded(
    rl_cluster=cluster,
    reward_fns=same_for_all,
    algo_config=GRPOConfig(num_generations=GROUP),
  )
  learner.train([{'prompts': np.array(PROMPTS)}] * BATCHES)
  assert found
  for example in found:
    credit = np.asarray(example.advantages)
    assert credit.shape == example.completion_ids.shape
    assert credit.any()
    ids, written = map(
      np.asarray, (example.completion_ids, example.completion_mask)
    )
    assert not credit[~written.astype(bool)].any()
    # All is paid for steps, as the completions are equally good. In a group
    # the first tokens, which all have a step, differ from a mean of 0.
    for group in range(len(ids) // GROUP):
      rows = slice(group * GROUP, (group + 1) * GROUP)
      texts = [
        cluster.tokenizer.decode(row[mask.astype(bool)].tolist())
        for row, mask in zip(ids[rows], written[rows], strict=True)
      ]
      lengths = np.array([len(text.split()[0]) for text in texts])
      at = written[rows].astype(bool).argmax(1)
      paid = credit[rows][np.arange(GROUP), at]
      np.testing.assert_allclose(paid.mean(), 0, atol=1e-5)
      assert ((paid > 0) == (lengths > lengths.mean())).all()
  learned = cluster.actor_trainer.model
  change = jax.tree.map(
    lambda a, b: jnp.abs(a - b).max(),
    nnx.state(learned, nnx.Param),
    nnx.state(reference, nnx.Param),
  )
  assert max(jax.tree.leaves(change)) > 0
