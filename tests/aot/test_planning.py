"""What aot plans for a config; nothing is compiled."""

import jax
import pytest

from prm_jax.aot import item_programs, programs, rl_programs, useful_flops
from prm_jax.data.encoding import make_format
from prm_jax.inference.loading import ModelDescription, write_description
from prm_jax.inference.packing import bucket, empty_rows
from prm_jax.models import HeadConfig, Rows, TransformerConfig
from prm_jax.training.train_state import NO_LORA
from tests.shared.compiled_elsewhere import run_aot
from tests.shared.configs import settings

# The built-in tokenizer of arithmetic has fewer words.
MODEL = TransformerConfig(200, 8, 2, 2, 1, 16)
SIZES = 'vocab_size', 'd_model', 'n_layers', 'n_heads', 'n_kv_heads', 'd_ff'
KNOWN = {f'aot.model.{name}': getattr(MODEL, name) for name in SIZES}
JOBS = {
  'search': ('search_math', 'beam', item_programs),
  'rl': ('rl_math', 'grpo', rl_programs),
}
ON_ONE = {f'mesh.{axis}': 1 for axis in ('replica', 'fsdp', 'model')}


def test_a_task_that_is_not_compiled_is_named_first():
  """Before --topology, or a compiler that is not installed."""
  config = '--config=configs/evaluate_math.py:tiny'
  done = run_aot(config, '--config.prm.path=/prm')
  assert done.returncode == 2
  assert "config.task='evaluate' is not compiled ahead" in done.stderr


def plan_scoring(job, head, tmp_path):
  """Plans the scoring of a search or of RL by a PRM with this head."""
  fmt = make_format('arithmetic', 64)
  write_description(tmp_path, ModelDescription(MODEL, head, NO_LORA, fmt))
  given = KNOWN | ON_ONE | {'prm.kind': 'workdir', 'prm.path': str(tmp_path)}
  file, variant, module = JOBS[job]
  chosen = settings(file, f'{variant},tiny', **given)
  return module.plan(chosen, jax.devices()[:1]).programs['score']


def rows_of(program):
  """The shapes of the rows that a program reads."""
  found = jax.tree.leaves(program.lower().in_avals)[-len(Rows._fields) :]
  return Rows(*found)


@pytest.mark.parametrize('job', JOBS)
def test_rows_have_the_types_that_they_have_in_a_job(job, tmp_path):
  rows = rows_of(plan_scoring(job, HeadConfig(), tmp_path))
  for name, read in empty_rows(1, 4, 2)._asdict().items():
    assert getattr(rows, name).dtype == read.dtype, name


def test_heads_on_a_frozen_backbone_train_nothing_else():
  """Only the reading of features is planned, on the backbone alone."""
  values = {'model.vocab_size': 200, 'frozen.heads': ('both',)}
  values |= {'orm_baseline': False, 'loss.lm_weight': 0.0} | ON_ONE
  chosen = settings('prm_math', 'tiny', **values)
  plan = programs.plan(chosen, jax.devices()[:1])
  assert plan.programs.keys() == {'features'} and not plan.rows
  program = plan.programs['features']
  rows, model = rows_of(program), programs.model_of(chosen)
  (params, _), _ = program.lower().in_avals
  assert params.keys() == {'backbone'} and not program.beside
  # 64 chains are read together, each in a row as long as the longest.
  assert rows.tokens.shape == (64, bucket(chosen.data.max_length))
  needed = useful_flops.reading(model, *rows.tokens.shape, logits=True)
  assert program.products == needed['products']


@pytest.mark.parametrize('lm_weight', [0.0, 0.5])
def test_a_likelihood_needs_the_product_with_the_vocabulary(lm_weight):
  """2 D V for each token; learning costs three times as much."""

  def plan(likelihood):
    values = {'model.vocab_size': 200, 'head.likelihood': likelihood}
    values |= {'loss.lm_weight': lm_weight} | ON_ONE
    chosen = settings('prm_math', 'tiny', **values)
    return programs.plan(chosen, jax.devices()[:1]), programs.model_of(chosen)

  (plain, model), (reads, _) = plan(False), plan(True)
  words = 2 * plain.rows * plain.length * model.d_model * 200
  more = {
    name: reads.programs[name].products - plain.programs[name].products
    for name in ('train', 'score')
  }
  # The LM loss asks for the same logits.
  assert more == {'train': 3 * words * (lm_weight == 0), 'score': words}


@pytest.mark.parametrize('job', JOBS)
def test_a_likelihood_costs_the_same_when_others_score(job, tmp_path):
  plain, reads = (
    plan_scoring(job, HeadConfig(likelihood=likelihood), tmp_path)
    for likelihood in (False, True)
  )
  words = 2 * rows_of(reads).tokens.size * MODEL.d_model * MODEL.vocab_size
  assert reads.products - plain.products == words
