"""Writes a model in the files that Hugging Face's libraries read.

    python -m prm_jax.export --from /tmp/prm_math --to /tmp/prm_math_hf \\
      --layout token_classification

A run is exported with its best checkpoint, adapters merged. A policy takes the
layout lm, and its end token goes into generation_config.json. A base model (a
folder, hf://OWNER/NAME, a .gguf file or smollm2) takes the layout lm, too.

A run gets a README.md with its results and its manifest, the model's card on
the Hub. --push OWNER/NAME uploads the folder.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prm_jax.data.tokenizer import HuggingFaceTokenizer, Tokenizer
from prm_jax.inference.loading import (
  best_step,
  is_run,
  open_checkpoint,
  read_description,
)
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.inference.published import own_format
from prm_jax.models import HeadConfig, TransformerConfig, init_head
from prm_jax.models.config import DTYPES
from prm_jax.models.hub import push
from prm_jax.models.hub.architectures import LAYOUTS
from prm_jax.models.hub.publish import (
  SaveOptions,
  check_folder,
  check_model,
  save_model,
)
from prm_jax.models.hub.safetensors_files import HUB
from prm_jax.report.model_card import BACKBONE, POLICY, PRM, model_card
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.runtime.sharding import flat_mesh
from prm_jax.runtime.workdir import write_json

Params = dict[str, Any]
GENERATION = 'generation_config.json'


class Source(NamedTuple):
  """Holds a model to be exported.

  Attributes:
    max_length: its context length in tokens.
    head: parameters of a PRM's head with two classes; None for layout lm.
    separator: the text between the steps that a PRM reads.
    end: the token with which a policy trained here ends a chain, or None.
    chat_template: the base model's template; '' for none.
    folder: the base model's folder, whose tokenizer is copied; None for none.
    token_ids: its first and last tokens, as in its config.json.
    of_prm: whether it is of a PRM trained here.
    step: the checkpoint's, for a run.
    is_best: whether it is the checkpoint that the run measured.
  """

  backbone: Params
  model: TransformerConfig
  tokenizer: Tokenizer
  max_length: int
  head: Params | None = None
  separator: str = ''
  end: int | None = None
  chat_template: str = ''
  folder: pathlib.Path | None = None
  token_ids: Mapping[str, Any] = {}
  of_prm: bool = False
  step: int = 0
  is_best: bool = True


def two_classes(params: Params, head: HeadConfig) -> Params:
  """Returns a head with two classes that gives the same probabilities.

  A logit z becomes the logits (0, z) of (wrong, right), because
  softmax(0, z)[1] = sigmoid(z).

  Args:
    params: parameters of a head with one logit or two classes.

  Raises:
    UserError: two logits cannot express the head, because it is of another
      kind or reads likelihoods.
  """
  if head.likelihood:
    raise UserError(
      'head.likelihood reads more than hidden states, which no layout of two '
      'classes stores; export the backbone as layout lm, or train with '
      'head.likelihood=False'
    )
  if head.kind == 'two_class':
    return params
  if head.kind != 'logit':
    raise UserError(
      f'head.kind={head.kind!r} is not stored by layouts of two classes; '
      'train with logit or two_class, or export the backbone as layout lm'
    )
  return params | {
    'kernel': jnp.pad(params['kernel'], ((0, 0), (1, 0))),
    'bias': jnp.pad(params['bias'], (1, 0)),
  }


def export(
  source: str,
  to: str | pathlib.Path,
  layout: str,
  step: int | None = None,
  dtype: str | None = None,
  repository: str = '',
) -> str:
  """Writes a run or a base model; see `models.hub.publish.save_model`.

  Args:
    source: the workdir of a run, or a base model as `open_pretrained` takes it.
    to: a local folder that does not exist or is empty.
    layout: one of LAYOUTS.
    step: a checkpoint of the run; the best one if None.
    dtype: the type of the stored parameters; None: as the run has them, or
      float32 for a base model.
    repository: OWNER/NAME that the card of a run names, if it is pushed.

  Returns:
    A line that says what was written.

  Raises:
    UserError: there is no such model, or it does not fit the layout.
  """
  paths.check_local(to, 'an exported model')
  # Resolved first, because saving replaces the folder, even if it is `.`.
  folder = pathlib.Path(to).resolve()
  check_folder(folder)
  from_run = not source.startswith(HUB) and is_run(paths.open_path(source))
  if from_run:
    model = _open_run(source, layout, step)
  else:
    model = _open_base(source, layout, step, dtype)
  has_file = isinstance(model.tokenizer, HuggingFaceTokenizer)
  ids = model.token_ids if model.end is None else {'eos_token_id': model.end}
  options = SaveOptions(
    max_length=model.max_length,
    dtype=dtype,
    bos=ids.get('bos_token_id'),
    eos=ids.get('eos_token_id'),
    beside=_beside(source if from_run else '', model, layout, to, repository),
  )
  with tempfile.TemporaryDirectory() as made:
    tokenizer = model.folder
    if has_file and tokenizer is None:
      tokenizer = pathlib.Path(made)
      _write_tokenizer(tokenizer, model, ids)
    save_model(
      folder,
      model.backbone,
      model.model,
      layout,
      model.head,
      tokenizer_from=tokenizer,
      options=options,
    )
  count = sum(leaf.size for leaf in jax.tree.leaves(model.backbone))
  beside = 'tokenizer.json' if has_file else 'no tokenizer, it is built in here'
  return f'{to}: {count:,} parameters of the backbone, {layout}; {beside}'


def _beside(
  run: str,
  model: Source,
  layout: str,
  to: str | pathlib.Path,
  repository: str,
) -> dict[str, str]:
  """Returns what stands beside the weights: file names and texts.

  Args:
    run: the workdir of a run, or ''.
  """
  files = {}
  if model.folder and (model.folder / GENERATION).is_file():
    path = model.folder / GENERATION
    try:
      files[GENERATION] = paths.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
      raise UserError(
        f"{path} cannot be read ({error}); copy the one of the model's folder"
      ) from None
  if model.head is not None:
    has_file = isinstance(model.tokenizer, HuggingFaceTokenizer)
    built_in = '' if has_file else model.tokenizer.name
    files |= own_format(model.separator, built_in)
  if model.end is not None:
    # The generate function of transformers stops at this token.
    files[GENERATION] = json.dumps({'eos_token_id': model.end}, indent=2) + '\n'
  if run:
    where = repository or str(to)
    if layout != 'lm' and repository:
      where = f'{HUB}{repository}'
    kind = PRM if layout != 'lm' else BACKBONE if model.of_prm else POLICY
    files['README.md'] = model_card(
      paths.open_path(run), kind, where, model.step, model.is_best
    )
  return files


def _write_tokenizer(
  folder: pathlib.Path, model: Source, ids: Mapping[str, Any]
) -> None:
  """Writes the files of a tokenizer that transformers opens as it is here.

  Without its class, transformers would take that of the model's family, which
  has other special tokens.
  """
  described = {'tokenizer_class': 'PreTrainedTokenizerFast'}
  described['clean_up_tokenization_spaces'] = False
  for name, token in ids.items():
    if isinstance(token, int):
      text = model.tokenizer.decode([token])
      described[name.removesuffix('_id')] = text
  write_json(folder / 'tokenizer_config.json', described)
  path = folder / 'tokenizer.json'
  path.write_text(model.tokenizer.json, encoding='utf-8')
  if model.chat_template:
    path = folder / 'chat_template.jinja'
    path.write_text(model.chat_template, encoding='utf-8')


def _open_run(source: str, layout: str, step: int | None) -> Source:
  """Opens a checkpoint of a run, with a head unless the layout is lm."""
  workdir = paths.open_path(source)
  described = read_description(workdir)
  if layout != 'lm' and described.head is None:
    raise UserError(
      f'{source} holds a policy, which has no head; use --layout lm'
    )
  head = None if layout == 'lm' else described.head
  shapes = head and _two_class_shapes(head, described.model.d_model)
  check_model(described.model, layout, shapes)
  params, _, opened = open_checkpoint(workdir, described, step)
  model = Source(
    params['backbone'],
    described.model,
    described.format.tokenizer,
    described.format.max_length,
    end=described.format.end if described.head is None else None,
    of_prm=described.head is not None,
    step=opened,
    is_best=opened == best_step(workdir, described),
  )
  if head is None:
    return model
  return model._replace(
    head=two_classes(params['head'], head),
    separator=described.separator,
  )


def _two_class_shapes(head: HeadConfig, d_model: int) -> Params:
  """Returns the shapes of what `two_classes` makes of a head."""
  return jax.eval_shape(
    lambda key: two_classes(init_head(key, d_model, head), head),
    jax.random.key(0),
  )


def _open_base(
  source: str, layout: str, step: int | None, dtype: str | None
) -> Source:
  """Opens a base model."""
  if layout != 'lm' or step is not None:
    raise UserError(
      f'{source} is no workdir of a run (it has no model.json), and a base '
      'model has neither a head nor steps; use --layout lm without --step'
    )
  base = open_pretrained(source)
  check_model(base.model, layout, None)
  chat_template = base.read_chat_template()
  return Source(
    base.load(flat_mesh(), dtype or 'float32'),
    base.model,
    base.tokenizer,
    base.longest,
    chat_template=chat_template,
    folder=base.folder,
    token_ids=base.token_ids,
  )


def main(argv: Sequence[str]) -> None:
  """Runs the command; exits with 2 on an error of the user."""
  parser = argparse.ArgumentParser(
    prog='prm_jax.export',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--from', dest='source', required=True)
  parser.add_argument('--to', required=True, help='a new or empty folder')
  parser.add_argument('--layout', required=True, choices=LAYOUTS)
  parser.add_argument(
    '--step', type=int, help='a checkpoint; default: the best'
  )
  parser.add_argument(
    '--dtype',
    choices=DTYPES,
    help="default: a run's own; float32 of a base model",
  )
  parser.add_argument(
    '--push', default='', metavar='OWNER/NAME', help='upload it to the Hub'
  )
  parser.add_argument(
    '--private', action='store_true', help='hide a repository that is made'
  )
  given = parser.parse_args(argv)
  given.to = os.path.expanduser(given.to)
  if given.private and not given.push:
    parser.error('--private hides what --push makes; name it, too')
  with exit_on_user_error():
    if given.push:  # before minutes of writing
      push.check(given.push)
    print(
      export(
        given.source,
        given.to,
        given.layout,
        given.step,
        given.dtype,
        given.push,
      )
    )
    if given.push:
      folder = pathlib.Path(given.to)
      print(f'pushed: {push.push(folder, given.push, given.private)}')


if __name__ == '__main__':
  main(sys.argv[1:])
