"""Compares decoding and sampling, and an update of RL on what was sampled."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.accelerator import right_checks as checks
from experiments.accelerator.right_checks import Setting, reference, subjects
from experiments.accelerator.right_programs import make_weights, typed
from prm_jax.inference.sampler import SamplingConfig, Stops
from prm_jax.inference.writer import SampledTokens, SampleRequest, Writer
from prm_jax.models import (
  TransformerConfig,
  decode,
  forward,
  init_cache,
  lm_logits,
  unstack_layers,
)
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.episodes import EpisodeRows
from prm_jax.rl.findings import Findings
from prm_jax.rl.loop import jit_advantages
from prm_jax.rl.objective import (
  Experience,
  Minibatch,
  PolicyLossConfig,
  make_objective,
)
from prm_jax.rl.rewards import RewardConfig
from prm_jax.rl.trees import lay_out, layout_for
from prm_jax.rl.views import View
from prm_jax.training.loop import compile_train_step, make_step
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import (
  NO_LORA,
  init_state,
  make_init,
  split_params,
)

STOPS = Stops(separator=2, end=3)
# Half as many slots as samples, so that slots are filled again.
# As long together as a row of RL may be (`writer.cache_bucket`).
SLOTS, SAMPLES, PROMPT, WRITTEN = 4, 8, 16, 32
GROUP = 4  # samples of a problem in RL
OPTIM = OptimConfig(lr=1e-3, warmup=0)


def some_tokens(model: TransformerConfig) -> np.ndarray:  # [SAMPLES, T]
  """Makes random prompts and what follows them."""
  rng = np.random.default_rng(1)
  shape = SAMPLES, PROMPT + WRITTEN
  return rng.integers(4, model.vocab_size, shape).astype(np.int32)


@functools.partial(jax.jit, static_argnums=1)
def forward_logits(
  params: Any, model: TransformerConfig, tokens: jax.Array
) -> jax.Array:  # [B, T, V]
  """Returns the logits of rows of one chain each, from one forward pass."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  last = jnp.full_like(tokens, tokens.shape[1] - 1)
  hidden = forward(params, model, tokens, positions, last)
  return lm_logits(params, model, hidden)


def read_logits(
  setting: Setting, model: TransformerConfig, tokens: np.ndarray
) -> np.ndarray:  # [B, T, V]
  """Returns the logits of one forward pass."""
  weights = setting.put(make_weights(model)['backbone'])
  with setting.use():
    logits = forward_logits(weights, typed(model, setting), setting.put(tokens))
    return np.asarray(logits)


@functools.partial(jax.jit, static_argnums=1)
def _decoded(
  params: Any, model: TransformerConfig, tokens: jax.Array
) -> jax.Array:
  B, T = tokens.shape
  params = unstack_layers(params, model)

  def read(cache: Any, at: jax.Array, size: int) -> tuple[Any, jax.Array]:
    piece = jax.lax.dynamic_slice_in_dim(tokens, at, size, 1)
    positions = jnp.broadcast_to(at + jnp.arange(size), piece.shape)
    hidden, cache = decode(params, model, piece, positions, cache)
    return cache, hidden

  cache, first = read(init_cache(model, B, T), 0, PROMPT)
  _, rest = jax.lax.scan(
    lambda cache, at: read(cache, at, 1), cache, jnp.arange(PROMPT, T)
  )
  rest = rest[:, :, 0].swapaxes(0, 1)  # from [T - PROMPT, B, 1, D]
  return lm_logits(params, model, jnp.concatenate([first, rest], 1))


def decode_logits(
  setting: Setting, model: TransformerConfig, tokens: np.ndarray
) -> np.ndarray:  # [B, T, V]
  """Returns the logits of a prompt, and of one token after another."""
  weights = setting.put(make_weights(model)['backbone'])
  with setting.use():
    logits = _decoded(weights, typed(model, setting), setting.put(tokens))
    return np.asarray(logits)


def compare_decoding(model: TransformerConfig) -> dict[str, Any]:
  """Compares logits through a cache with those of a forward pass."""
  tokens = some_tokens(model)
  expected = read_logits(reference(), model, tokens)
  return checks.found(
    [
      checks.check(
        f'logits through a cache, {s.name}',
        checks.relative(decode_logits(s, model, tokens), expected),
        checks.VALUES[s.rounding],
      )
      for s in subjects()
    ]
  )


def sample(
  setting: Setting, model: TransformerConfig, temperature: float
) -> list[SampledTokens]:
  """Samples from all prompts; the seeds do not depend on the setting.

  Of a few tokens each time: of many, as unlikely as these random models make
  them, rounding alone would often draw a neighbour.
  """
  prompts = some_tokens(model)[:, :PROMPT].tolist()
  config = SamplingConfig(temperature, 8, slots=SLOTS, max_tokens=WRITTEN)
  writer = Writer(
    setting.put(make_weights(model)['backbone']),
    typed(model, setting),
    setting.mesh,
    config,
    STOPS,
    PROMPT + WRITTEN,
  )
  with setting.use():
    return writer.write(
      [SampleRequest(tuple(ids), seed) for seed, ids in enumerate(prompts)]
    )


def to_rows(
  model: TransformerConfig, samples: list[SampledTokens]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # [SAMPLES, T] each
  """Returns prompts and samples, which of them are sampled, and their logs."""
  tokens = some_tokens(model).copy()
  logprobs = np.zeros(tokens.shape, np.float32)
  written = np.zeros(tokens.shape, bool)
  for row, one in enumerate(samples):
    own = slice(PROMPT, PROMPT + len(one.tokens))
    tokens[row, own], logprobs[row, own] = one.tokens, one.logprobs
    written[row, own] = True
  return tokens, written, logprobs


def other_share(
  ours: list[SampledTokens], theirs: list[SampledTokens]
) -> float:
  """Returns the share of tokens that are not those of the other side."""
  same = sum(
    int((a.tokens[: len(b.tokens)] == b.tokens[: len(a.tokens)]).sum())
    for a, b in zip(ours, theirs, strict=True)
  )
  return 1 - same / sum(
    max(len(a.tokens), len(b.tokens)) for a, b in zip(ours, theirs, strict=True)
  )


def compare_greedy(model: TransformerConfig) -> dict[str, Any]:
  """Compares samples of the most likely tokens.

  After two tokens that are almost equally likely, one side may go another way.
  So each side's tokens are also read by the CPU: they must be the most likely
  ones there, or almost, to the end.
  """
  expected = sample(reference(), model, 0.0)
  made = []
  for s in subjects():
    samples = sample(s, model, 0.0)
    tokens, written, logprobs = to_rows(model, samples)
    logits = read_logits(reference(), model, tokens)
    log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)[:, :-1]
    chosen = np.take_along_axis(log_p, tokens[:, 1:, None], 2)[..., 0]
    at = written[:, 1:]
    made += [
      checks.check(
        f"share of tokens that are not the CPU's, {s.name}",
        other_share(samples, expected),
        checks.OTHER_TOKENS[s.rounding],
      ),
      checks.check(
        f'nats below the most likely token, {s.name}',
        checks.largest((log_p.max(-1) - chosen)[at]),
        checks.NATS[s.rounding],
      ),
      checks.check(
        f"log-probabilities beside the CPU's, {s.name}",
        checks.furthest(logprobs[:, 1:][at], chosen[at]),
        checks.NATS[s.rounding],
      ),
    ]
  return checks.found(made)


def no_episodes(tokens: np.ndarray, written: np.ndarray) -> EpisodeRows:
  """Makes rows of chains with everything but their tokens 0."""
  none, steps = np.zeros(tokens.shape, np.float32), np.zeros((len(tokens), 1))
  lengths = np.full(len(tokens), tokens.shape[1], np.int32)
  return EpisodeRows(
    *(tokens, lengths, written, none, none),
    *(steps.astype(np.int32), steps > 0, none[:, 0]),
  )


def view(
  setting: Setting, model: TransformerConfig, rows: EpisodeRows
) -> np.ndarray:  # [B, T]
  """Returns log-probabilities as RL reads them."""
  read = View('logprobs', typed(model, setting), setting.mesh, len(rows.tokens))
  with setting.use():
    weights = {'backbone': make_weights(model)['backbone']}
    return read(setting.put(weights), rows)


def compare_drawn(model: TransformerConfig) -> dict[str, Any]:
  """Compares samples at temperature 1, drawn with the same seeds.

  RL relies on the second check: what sampling says of a token's probability is
  what a forward pass of the same model says.
  """
  expected = sample(reference(), model, 1.0)
  made = []
  for s in subjects():
    samples = sample(s, model, 1.0)
    tokens, written, logprobs = to_rows(model, samples)
    read = view(s, model, no_episodes(tokens, written))
    if s.rounding == 'float32':
      # With more rounding the limits between tokens move, and a number that
      # falls near one of them soon leads every chain another way.
      made.append(
        checks.check(
          f"share of tokens that are not the CPU's, {s.name}",
          other_share(samples, expected),
          checks.OTHER_TOKENS[s.rounding],
        )
      )
    made.append(
      checks.check(
        f'log-probabilities beside a forward pass, {s.name}',
        checks.furthest(logprobs[written], read[written]),
        checks.NATS[s.rounding],
      )
    )
  return checks.found(made)


def make_findings(rows: EpisodeRows) -> Findings:
  """Makes random scores of three steps in each chain."""
  rng = np.random.default_rng(2)
  ends = np.tile(np.int32([PROMPT + 5, PROMPT + 12, PROMPT + 20]), (SAMPLES, 1))
  return Findings(
    scores=rng.uniform(size=ends.shape).astype(np.float32),
    step_mask=np.ones(ends.shape, bool),
    step_ends=ends,
    outcomes=(np.arange(SAMPLES) % 3 == 0).astype(np.float32),
    written=rows.written,
    penalties=np.zeros(rows.written.shape, np.float32),
  )


def advantages(setting: Setting, findings: Findings) -> np.ndarray:  # [B, T]
  """Returns the advantage of every token."""
  compute = jit_advantages(
    GROUP, RewardConfig(outcome_weight=0.5), AdvantageConfig(), setting.mesh
  )
  with setting.use():
    values = np.zeros(findings.written.shape, np.float32)
    share = np.float32(1.0)
    return np.asarray(compute(*setting.put((findings, values)), share)[0])


def policy_step(
  setting: Setting,
  model: TransformerConfig,
  rows: EpisodeRows,
  chains: Experience,
) -> dict[str, float]:
  """Takes a train step of a policy; returns its metrics."""
  layout = layout_for(model, setting.mesh)
  trees = lay_out(rows.tokens, rows.lengths, layout=layout)
  weights = setting.put(make_weights(model)['backbone'])
  model = typed(model, setting)
  optimizer = make_optimizer(OPTIM, 1)
  step = make_step(
    make_objective(
      model, PolicyLossConfig(kl_weight=0.1, entropy_weight=0.01), WRITTEN
    ),
    lambda params: split_params(params, None, NO_LORA, lm_loss=True),
    model,
    optimizer,
    make_schedule(OPTIM, 1),
    1,
  )
  with setting.use():
    init = make_init(model, None, optimizer)
    state = init_state(init, setting.mesh, 0, weights)
    step = compile_train_step(step, state, setting.mesh)
    _, metrics = step(state, setting.put(Minibatch(trees, chains)))
    return jax.tree.map(float, metrics)


def compare_rl(model: TransformerConfig) -> dict[str, Any]:
  """Compares the log-probabilities, advantages and train step of an update."""
  cpu, rng = reference(), np.random.default_rng(3)
  tokens = some_tokens(model)
  written = np.broadcast_to(np.arange(tokens.shape[1]) >= PROMPT, tokens.shape)
  rows = no_episodes(tokens, written)
  findings = make_findings(rows)
  logprobs, credited = view(cpu, model, rows), advantages(cpu, findings)

  def nearby() -> np.ndarray:
    # As of a policy some updates ago: some ratios are clipped.
    noise = rng.normal(0, 0.15, logprobs.shape)
    return (logprobs + noise).astype(np.float32)

  none = np.zeros(tokens.shape, np.float32)
  batch = Experience(
    *(written, nearby(), nearby()),
    *(credited, none, none),
  )
  expected = policy_step(cpu, model, rows, batch)
  made = []
  for s in subjects():
    metrics = policy_step(s, model, rows, batch)
    read = view(s, model, rows)
    made += [
      checks.check(
        f'log-probabilities, {s.name}',
        checks.furthest(read[written], logprobs[written]),
        checks.NATS[s.rounding],
      ),
      checks.check(
        f'advantages, {s.name}',
        checks.relative(advantages(s, findings), credited),
        checks.EXACT[s.rounding],
      ),
      # Absolute: advantages of size 1 add up to a loss of about 0.
      checks.check(
        f'loss, {s.name}',
        abs(metrics['loss'] - expected['loss']),
        checks.LOSSES[s.rounding],
      ),
      *(
        checks.check(
          f'{words}, {s.name}',
          abs(metrics[name] / expected[name] - 1),
          bounds[s.rounding],
        )
        for name, words, bounds in (
          ('entropy', 'entropy', checks.LOSSES),
          ('grad_norm', "gradient's norm", checks.GRADIENTS),
        )
      ),
    ]
  return checks.found(made)
