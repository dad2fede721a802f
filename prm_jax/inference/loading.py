"""Opens training runs: a PRM as a Scorer, a policy as a Generator.

    model.json, tokenizer.json, checkpoints -> description, parameters -> object

model.json describes the parameters of a workdir completely (with tokenizer.json
if the tokenizer is not built in), so a workdir can be moved anywhere.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh

from prm_jax.data.encoding import StepFormat, make_format
from prm_jax.data.tokenizer import (
  HuggingFaceTokenizer,
  check_rows,
  read_tokenizer,
)
from prm_jax.inference.generator import Generator
from prm_jax.inference.published import open_published
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.inference.scorer import Scorer
from prm_jax.models import (
  HeadConfig,
  LoraConfig,
  RopeScaling,
  TransformerConfig,
  attach,
  merge,
)
from prm_jax.models.decoding_params import take_over
from prm_jax.models.dtypes import fast_dtype
from prm_jax.models.hub.safetensors_files import HUB
from prm_jax.runtime import paths
from prm_jax.runtime.checkpoints import NONE_YET, Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.seals import read_sums
from prm_jax.runtime.sharding import check_heads, flat_mesh
from prm_jax.runtime.workdir import DELETE, write_json
from prm_jax.training.train_state import (
  make_params,
  placed_shapes,
  to_param_dtype,
)


@dataclasses.dataclass(frozen=True)
class ModelDescription:
  """Describes the parameters of a run.

  Attributes:
    model: the backbone's architecture.
    head: the PRM's head; None for a policy.
    lora: the adapters; their rank is 0 if there are none.
    format: how problems and steps become ids.
    separator: the format's separator, '' if the tokenizer has its own.
    end: the format's end, '' if the tokenizer has its own.
    best_metric: metric that chooses the best checkpoint, '' for the latest.
  """

  model: TransformerConfig
  head: HeadConfig | None
  lora: LoraConfig
  format: StepFormat
  separator: str = ''
  end: str = ''
  best_metric: str = ''

  def abstract_params(self, mesh: Mesh) -> Any:
    """Returns shapes and shardings of the parameters as trained."""
    shapes = jax.eval_shape(
      lambda key: to_param_dtype(
        make_params(key, self.model, self.head, self.lora), self.model
      ),
      jax.random.key(0),
    )
    return placed_shapes(shapes, mesh)

  def with_model(self, **changes: Any) -> 'ModelDescription':
    """Returns a copy with other values in its TransformerConfig."""
    model = dataclasses.replace(self.model, **changes)
    return dataclasses.replace(self, model=model)

  def computed_in(self, dtype: str) -> 'ModelDescription':
    """Returns a copy that computes in a dtype; '' keeps its own."""
    if not dtype:
      return self
    return self.with_model(param_dtype=dtype, dtype=dtype)

  def attached(self, params: Any) -> Any:
    """Returns {'backbone', 'head'} to read amid training, without a copy."""
    if not self.lora.rank:
      return params
    backbone = attach(params['backbone'], params['lora'], self.lora)
    kept = {name: part for name, part in params.items() if name != 'lora'}
    return kept | {'backbone': backbone}

  def merged(self, params: Any, give_away: bool = False) -> Any:
    """Returns {'backbone', 'head'} with adapters merged; a policy has no head.

    Args:
      params: parameters as trained.
      give_away: whether the merged backbone may take over the memory of the
        backbone in `params`.
    """
    if not self.lora.rank:
      return params
    # Quantized kernels are too small to take over.
    given = 0 if give_away and not self.lora.quantized else None
    backbone = jax.jit(merge, static_argnums=2, donate_argnums=given)(
      params['backbone'], params['lora'], self.lora
    )
    kept = {name: part for name, part in params.items() if name != 'lora'}
    return kept | {'backbone': backbone}


def write_description(
  workdir: paths.Path, description: ModelDescription
) -> None:
  """Writes model.json, and tokenizer.json unless the tokenizer is built in."""
  fmt = description.format
  name = fmt.tokenizer.name
  if isinstance(fmt.tokenizer, HuggingFaceTokenizer):
    name = 'tokenizer.json'
    paths.write_text(workdir / name, fmt.tokenizer.json)
  write_json(
    workdir / 'model.json',
    {
      'model': dataclasses.asdict(description.model),
      'head': description.head and dataclasses.asdict(description.head),
      'lora': dataclasses.asdict(description.lora),
      'format': {
        'tokenizer': name,
        'max_length': fmt.max_length,
        'separator': description.separator,
        'end': description.end,
      },
      'best_metric': description.best_metric,
    },
  )


def is_run(folder: paths.Path) -> bool:
  """Says whether a folder is the workdir of a training run."""
  with paths.as_user_errors(folder):
    return (folder / 'model.json').is_file()


def read_description(workdir: paths.Path) -> ModelDescription:
  """Reads what write_description wrote.

  Raises:
    UserError: model.json is missing or damaged, or describes no such model.
  """
  path = workdir / 'model.json'
  values = paths.read_json(path, DELETE)
  try:
    fmt, model = values['format'], dict(values['model'])
    if scaling := model['rope_scaling']:
      model['rope_scaling'] = RopeScaling(**scaling)
    tokenizer = fmt['tokenizer']
    end = fmt.get('end', '')  # early versions did not write it
    if tokenizer == 'tokenizer.json':
      tokenizer = read_tokenizer(workdir)
    elif not isinstance(tokenizer, str):
      raise TypeError(f'format.tokenizer is {tokenizer!r}')
    described = ModelDescription(
      TransformerConfig(**model),
      values['head'] and HeadConfig(**values['head']),
      LoraConfig(**values['lora']),
      make_format(tokenizer, fmt['max_length'], fmt['separator'], end),
      fmt['separator'],
      end,
      values['best_metric'],
    )
  except (LookupError, TypeError, ValueError, AttributeError) as error:
    if isinstance(error, UserError) and str(workdir) in str(error):
      raise  # of the tokenizer's file
    why = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise UserError(
      f'{path} does not describe a model of this version ({why}); name the '
      'workdir of a training run'
    ) from None
  check_rows(described.format.tokenizer, described.model.vocab_size, workdir)
  return described


def _check_no_step(path: str | pathlib.Path, step: int | None) -> None:
  if step is not None:
    raise UserError(
      f'{path} is no run with a model.json, so it has no step {step}; leave '
      'it out, or name the workdir of a training run'
    )


def open_checkpoint(
  workdir: paths.Path,
  described: ModelDescription,
  step: int | None = None,
  mesh: Mesh | None = None,
) -> tuple[Any, Mesh, int]:
  """Returns a run's parameters with adapters merged, their mesh and step.

  Args:
    step: step of a checkpoint; by default the best by the run's own metric, or
      the last if it has none.
    mesh: devices to hold them; by default all devices of all processes.

  Raises:
    UserError: there is no checkpoint, or it is damaged.
  """
  mesh = mesh or flat_mesh()
  check_heads(described.model.n_heads, mesh)
  with contextlib.closing(_checkpoints(workdir, described)) as checkpoints:
    step = _best(checkpoints, workdir) if step is None else step
    params = checkpoints.load_params(described.abstract_params(mesh), step)
  return described.merged(params, give_away=True), mesh, step


def load_head(
  workdir: paths.Path, described: ModelDescription, mesh: Mesh
) -> Any:
  """Returns the parameters of a run's head alone, from the best checkpoint."""
  abstract = {'head': described.abstract_params(mesh)['head']}
  with contextlib.closing(_checkpoints(workdir, described)) as checkpoints:
    step = _best(checkpoints, workdir)
    return checkpoints.load_params(abstract, step)['head']


def best_step(workdir: paths.Path, described: ModelDescription) -> int:
  """Returns the step that `open_checkpoint` opens by default."""
  with contextlib.closing(_checkpoints(workdir, described)) as checkpoints:
    return _best(checkpoints, workdir)


def _checkpoints(
  workdir: paths.Path, described: ModelDescription
) -> Checkpoints:
  directory = workdir / 'checkpoints'
  if not directory.exists():
    raise UserError(f'{directory} does not exist; train first')
  return Checkpoints(
    directory, keep=1, best=described.best_metric, writes=False
  )


def _best(checkpoints: Checkpoints, workdir: paths.Path) -> int:
  if checkpoints.best is None:
    raise UserError(f'{workdir / "checkpoints"} {NONE_YET}')
  return checkpoints.best


def load(
  path: str | pathlib.Path,
  step: int | None = None,
  style: str = '',
  mesh: Mesh | None = None,
  dtype: str = '',
  **options: Any,
) -> Scorer:
  """Opens a PRM: one that was trained here, or a published one.

  Args:
    path: the workdir of a training run, on disk or at gs://; the folder of a
      published PRM; or 'hf://owner/name'.
    step: step of a run's checkpoint; by default the best by the run's own
      metric, or the last if it has none.
    style: one of `published.STYLES`, for a published PRM whose weights do not
      show it.
    mesh: devices to score on; by default all. Processes that share a mesh must
      all ask the same; on its own devices each may ask anything.
    dtype: type of the backbone's parameters and computation, 'float32' or
      'bfloat16'; by default bfloat16 on a TPU or GPU; on a CPU the run's own,
      but float32 where bfloat16 is slow, and for a published PRM.
    **options: further arguments of `published.open_published`.

  Raises:
    UserError: there is no PRM at this path, or its checkpoint is damaged.
  """
  mesh = mesh or flat_mesh()

  def published() -> Scorer:
    chosen = dtype or fast_dtype(mesh, 'float32') or 'float32'
    return open_published(path, style, mesh=mesh, dtype=chosen, **options)

  if str(path).startswith(HUB):
    _check_no_step(path, step)
    return published()
  workdir = paths.open_path(path)
  if not is_run(workdir):
    if not (workdir / 'config.json').is_file():
      raise UserError(
        f'{workdir} holds neither the model.json of a training run nor the '
        'config.json of a published PRM; name a folder that does'
      )
    if (workdir / 'checkpoints').is_dir():
      raise UserError(
        f'{workdir} has checkpoints and no model.json, which tells what they '
        'are; it is of an earlier version: train again'
      )
    _check_no_step(path, step)
    return published()
  if style or options:
    given = ', '.join(filter(None, [style and 'style', *options]))
    raise UserError(
      f'{workdir} is a training run, which takes no {given}; leave it out'
    )
  described = read_description(workdir)
  if described.head is None:
    raise UserError(
      f'{workdir} holds a policy, which scores nothing; name the workdir of a '
      'reward model, or open it with prm_jax.inference.loading.load_policy'
    )
  dtype = dtype or fast_dtype(mesh, described.model.dtype)
  described = described.computed_in(dtype)
  params, mesh, step = open_checkpoint(workdir, described, step, mesh)
  return Scorer(
    params,
    described.model,
    described.head,
    described.format,
    mesh,
    run_name(workdir, step, dtype),
  )


def load_policy(
  path: str | pathlib.Path,
  sampling: SamplingConfig,
  step: int | None = None,
  seed: int = 0,
  mesh: Mesh | None = None,
  dtype: str = '',
) -> Generator:
  """Opens a policy that was trained here.

  Args:
    path: the run's workdir, on disk or at gs://.
    sampling: how tokens are drawn, and for how many chains at once.
    step: step of a checkpoint; by default the best by the run's own metric.
    seed: seeds all samples, see `protocols.sample_seed`.
    mesh: devices to sample on; by default all. Processes that share a mesh must
      all ask the same; on its own devices each may ask anything.
    dtype: type of its parameters and computation, 'float32' or 'bfloat16'; by
      default bfloat16 on a TPU or GPU; on a CPU the run's own, but float32
      where bfloat16 is slow.

  Raises:
    UserError: there is no policy at this path, or its checkpoint is damaged.
  """
  workdir = paths.open_path(path)
  if not is_run(workdir):
    raise UserError(
      f'{workdir} holds no model.json of a training run; name the workdir of a '
      'policy, as configs/policy_math.py trains one'
    )
  described = read_description(workdir)
  if described.head is not None:
    raise UserError(
      f'{workdir} holds a reward model, which writes nothing; name the workdir '
      'of a policy, or open it with prm_jax.load'
    )
  mesh = mesh or flat_mesh()
  dtype = dtype or fast_dtype(mesh, described.model.dtype)
  described = described.computed_in(dtype)
  params, mesh, step = open_checkpoint(workdir, described, step, mesh)
  return Generator(
    take_over(params.pop('backbone'), described.model, mesh, sampling.spread),
    described.model,
    described.format,
    mesh,
    sampling,
    seed,
    run_name(workdir, step, dtype),
  )


def run_name(workdir: paths.Path, step: int, dtype: str = '') -> str:
  """Returns a name of a run's parameters at a step, wherever the workdir is.

  It is a hash of model.json and of the checkpoint's sums, which tell other
  parameters apart without reading any. A checkpoint of an earlier version has
  no sums, and is known by its folder.
  """
  folder = workdir / 'checkpoints' / str(step)
  sums = read_sums(folder, 'params') or str(folder)
  texts = [(workdir / 'model.json').read_text(), json.dumps(sums)]
  digest = hashlib.sha256('\n'.join(texts).encode()).hexdigest()[:12]
  return f'{digest}@{step} {dtype}'.rstrip()
