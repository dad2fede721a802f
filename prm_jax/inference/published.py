"""Opens published PRMs as ordinary Scorers.

    config.json, safetensors, tokenizer.json (+ chat template)
      -> style -> StepFormat (how it reads a chain) + head (how it scores)

A style is the convention of a family of PRMs; STYLES lists the known ones. A
language model that judges with its next token becomes a two-class head: of the
output embedding only the rows of '-' and '+' are kept.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax.data.encoding import make_format
from prm_jax.data.tokenizer import check_rows, read_tokenizer
from prm_jax.inference.scorer import Scorer
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.published_formats import (
  make_published_format,
  verdict_ids,
)
from prm_jax.models.hub.safetensors_files import TensorFiles, read_json, resolve
from prm_jax.models.hub.weights import load_backbone
from prm_jax.runtime.errors import UserError, show
from prm_jax.runtime.sharding import flat_mesh, shardings

# The styles with a head of their own, and the tensor by which it is recognized.
HEADS = {
  'qwen_prm': 'score.2.weight',
  'skywork': 'v_head.summary.weight',
  'trl': 'score.weight',
}
# The file that `export` writes beside a model that was trained here.
OWN_FORMAT = 'prm_jax_format.json'
LONGEST = 4096  # tokens of a chain that a published PRM reads
LM_STYLES = ('math_shepherd', 'rlhflow')
STYLES = (*HEADS, *LM_STYLES)
ASK_FOR_STYLE = 'give style=' + ' or '.join(map(repr, LM_STYLES))


def open_published(
  path: str | pathlib.Path,
  style: str = '',
  max_length: int | None = None,
  separator: str | None = None,
  dtype: str = 'float32',
  mesh: Mesh | None = None,
) -> Scorer:
  """Opens a published PRM; its scores are those of its authors' own code.

  Args:
    path: a folder with config.json, tokenizer.json and safetensors, or
      'hf://owner/name'.
    style: one of STYLES. Only a plain language model needs it ('math_shepherd'
      or 'rlhflow'); other PRMs are recognized by their head.
    max_length: longest chain in tokens, if the model's window allows it;
      default: 4,096, and of a model that was exported here its whole window.
    separator: the text after each step that a 'trl' model was trained with,
      which other styles know; default: the end of a line, and of a model that
      was exported here its own.
    dtype: type of parameters and computation, 'float32' or 'bfloat16'.
    mesh: devices that hold them; by default all devices of all processes.

  Raises:
    UserError: the style is unknown, missing or does not fit the weights; the
      tokenizer or its chat template lacks what the style needs; the model's
      architecture is not supported; or the separator is another than it was
      exported with here, or given for a style that knows its own.
  """
  if max_length is not None and max_length < 1:
    raise UserError(f'max_length={max_length}: expected at least 1')
  directory = resolve(path)
  architecture, longest = read_architecture(directory)
  files = TensorFiles(directory)
  style = _style(files, style)
  is_own = (directory / OWN_FORMAT).is_file()
  if max_length or not is_own:
    longest = min(longest, max_length or LONGEST)
  if is_own:
    own = read_json(directory / OWN_FORMAT)
    built_in = str(own.get('tokenizer') or '')
    tokenizer = built_in or read_tokenizer(directory)
    separator = _own_separator(directory / OWN_FORMAT, own, separator)
    fmt = make_format(tokenizer, longest, separator)
  else:
    if separator is not None and style != 'trl':
      raise UserError(
        f'separator={separator!r}: {directory} is of style {style!r}, which '
        'knows how steps end; leave separator out'
      )
    tokenizer = read_tokenizer(directory)
    separator = '\n' if separator is None else separator
    fmt = make_published_format(style, directory, tokenizer, longest, separator)
  check_rows(fmt.tokenizer, architecture.vocab_size, directory)
  head_tensors: tuple[str, ...] = ()
  if style in LM_STYLES:
    verdicts = verdict_ids(tokenizer, directory)
    head, params = _lm_head(files, architecture, verdicts)
  else:
    head, params, head_tensors = _own_head(files, style, architecture.d_model)
  # The output embedding is dropped, as in models that tie it to the input's.
  model = dataclasses.replace(architecture, tie_embeddings=True, dtype=dtype)
  mesh = mesh or flat_mesh()
  tree = {'head': params}
  return Scorer(
    {
      'backbone': load_backbone(files, model, mesh, dtype, head_tensors),
      **jax.device_put(tree, shardings(tree, mesh)),
    },
    model,
    head,
    fmt,
    mesh,
    _name(style, dtype, (architecture, longest, separator), params, files),
  )


def _name(
  style: str,
  dtype: str,
  read_as: tuple,
  head: Mapping[str, np.ndarray],
  files: TensorFiles,
) -> str:
  """Names a PRM by a hash of what tells it from others of its family.

  A whole file of weights takes long to read, so the first row of each matrix
  stands for it: training and adapters change whole matrices. The tokenizer is
  not looked at. The dtype is named unless it is float32.

  Args:
    read_as: what else changes its scores.
  """
  digest = hashlib.sha256(repr(read_as).encode())
  for name in sorted(head):
    digest.update(head[name].tobytes())
  for name in sorted(files.shapes):
    if name.endswith('.weight'):
      digest.update(files.read_slice(name, (slice(1),)).tobytes())
  name = f'{style} {digest.hexdigest()[:12]}'
  return name if dtype == 'float32' else f'{name} {dtype}'


def own_format(separator: str, tokenizer: str = '') -> dict[str, str]:
  """Returns the file that says that a PRM reads prm_jax's own format.

  Args:
    separator: see `encoding.make_format`.
    tokenizer: name of a built-in one, '' for the folder's tokenizer.json.

  Returns:
    Its name and text, as `publish.SaveOptions.beside` takes them.
  """
  text = json.dumps({'tokenizer': tokenizer, 'separator': separator})
  return {OWN_FORMAT: f'{text}\n'}


def _own_separator(
  path: pathlib.Path, own: Mapping[str, object], given: str | None
) -> str:
  """Returns the separator in the file that `own_format` wrote.

  Raises:
    UserError: the file has none, or another one was given.
  """
  separator = own.get('separator')
  if not isinstance(separator, str):
    raise UserError(
      f"{path}: 'separator' is {show(separator)}, expected a text; export the "
      'run again'
    )
  if given not in (None, separator):
    raise UserError(
      f'separator={given!r}: {path} says that the model was trained with '
      f'{separator!r}; leave separator out'
    )
  return separator


def shown_style(files: TensorFiles) -> str:
  """Returns the style that a head shows; '' for a plain language model."""
  return next((s for s, mark in HEADS.items() if mark in files.shapes), '')


def _style(files: TensorFiles, style: str) -> str:
  """Returns the style that the tensors show, or the given one if it fits."""
  if style and style not in STYLES:
    raise UserError(
      f'unknown style {style!r}: expected one of {", ".join(STYLES)}'
    )
  own = shown_style(files)
  if not own and not style:
    raise UserError(
      f'{files.directory} is a plain language model, which does not say how '
      f'it scores steps; {ASK_FOR_STYLE}'
    )
  if not own and style in HEADS:
    raise UserError(
      f'{files.directory} has no tensor {HEADS[style]!r}, which style '
      f'{style!r} needs; if it is a plain language model, {ASK_FOR_STYLE}'
    )
  kind = str(read_json(files.directory / 'config.json').get('architectures'))
  if own == 'trl' and 'ForSequenceClassification' in kind:
    raise UserError(
      f'{files.directory} is a classifier of whole texts ({kind}), which '
      'scores no steps; name a model ForTokenClassification'
    )
  if own and style not in ('', own):
    raise UserError(
      f'{files.directory} has the head of style {own!r} ({HEADS[own]}), not of '
      f'{style!r}; leave style out'
    )
  return style or own


def _lm_head(
  files: TensorFiles, model: TransformerConfig, verdicts: tuple[int, int]
) -> tuple[HeadConfig, dict[str, np.ndarray]]:
  """Makes a head of the output embedding's rows of '-' and '+'."""
  tied = model.tie_embeddings
  name = 'model.embed_tokens.weight' if tied else 'lm_head.weight'
  shape = (model.vocab_size, model.d_model)
  files.check({name: shape}, ignored=('',))
  rows = [files.read_part(name, (slice(i, i + 1),)) for i in verdicts]
  kernel = np.concatenate(rows).T.copy()
  return HeadConfig('two_class'), {
    'kernel': kernel,
    'bias': np.zeros(2, np.float32),
  }


def _own_head(
  files: TensorFiles, style: str, d_model: int
) -> tuple[HeadConfig, dict[str, np.ndarray], tuple[str, ...]]:
  """Reads the head of a folder; also returns the names of its tensors."""
  shapes: dict[str, tuple[int, ...] | None]
  if style == 'qwen_prm':
    # A damaged file may have no axis here; `check` names what is wrong.
    hidden = (files.shapes[HEADS[style]] or (0,))[-1]
    head = HeadConfig('two_class', hidden=hidden)
    shapes = {
      'score.0.weight': (hidden, d_model),
      'score.0.bias': (hidden,),
      'score.2.weight': (2, hidden),
      'score.2.bias': (2,),
    }
    names = ('hidden_kernel', 'hidden_bias', 'kernel', 'bias')
  elif style == 'skywork':
    head = HeadConfig('logit')
    shapes = {
      'v_head.summary.weight': (1, d_model),
      'v_head.summary.bias': (1,),
    }
    names = ('kernel', 'bias')
  else:
    head = HeadConfig('two_class')
    shapes = {'score.weight': (2, d_model)}
    if 'score.bias' in files.shapes:
      shapes['score.bias'] = (2,)
    names = ('kernel', 'bias')
  files.check(shapes, ignored=('',))
  # Published kernels are [outputs, inputs].
  read = [files.read(name).T.copy() for name in shapes]
  params = dict(zip(names, read, strict=False))
  params.setdefault('bias', np.zeros(head.outputs, np.float32))
  return head, params, tuple(shapes)
