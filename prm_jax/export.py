"""The command line that writes a model as Hugging Face's libraries read it.

    python -m prm_jax.export --from /tmp/prm_math --to /tmp/prm_math_hf \\
      --layout token_classification

A run goes out with its best checkpoint, adapters merged; a policy as layout lm,
with the token that it ends on in generation_config.json. A base model (a
folder, hf://OWNER/NAME, a .gguf file or smollm2) goes out as layout lm.
"""

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from prm_jax.data.tokenizer import HuggingFaceTokenizer
from prm_jax.inference.loading import open_checkpoint, read_description
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.inference.published import write_format
from prm_jax.models import HeadConfig
from prm_jax.models.config import DTYPES
from prm_jax.models.hub.architectures import LAYOUTS
from prm_jax.models.hub.publish import SaveOptions, save_model
from prm_jax.models.hub.safetensors_files import HUB
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.runtime.sharding import flat_mesh
from prm_jax.runtime.workdir import write_json

Params = dict[str, Any]


def two_classes(params: Params, head: HeadConfig) -> Params:
  """A head whose softmax over (wrong, right) gives the same probabilities.

  A logit z is the two logits (0, z): softmax(0, z)[1] = sigmoid(z).

  Raises:
    UserError: the head is of another kind, or reads likelihoods, and two
      logits do not hold it.
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
) -> str:
  """Writes a run or a base model; see `models.publish.save_model`.

  Args:
    source: the workdir of a run, or what `open_pretrained` takes.
    step: of a run's checkpoint; the best where it is not given.

  Returns:
    What was done, in a line.

  Raises:
    UserError: there is no such model, or it does not fit the layout.
  """
  head, separator, end, chat_template = None, '', None, ''
  paths.check_local(to, 'an exported model')
  if not source.startswith(HUB) and _is_run(paths.open_path(source)):
    workdir = paths.open_path(source)
    described = read_description(workdir)
    if layout != 'lm' and described.head is None:
      raise UserError(
        f'{source} holds a policy, which has no head; use --layout lm'
      )
    params, _, _ = open_checkpoint(workdir, described, step)
    backbone, config = params['backbone'], described.model
    tokenizer, longest = described.format.tokenizer, described.format.max_length
    if described.head is None:
      end = described.format.end
    if layout != 'lm':
      separator = described.separator
      head = two_classes(params['head'], described.head)
  else:
    if layout != 'lm' or step is not None:
      raise UserError(
        f'{source} is no workdir of a run (it has no model.json), and a base '
        'model has neither a head nor steps; use --layout lm without --step'
      )
    base = open_pretrained(source)
    config, tokenizer, longest = base.model, base.tokenizer, base.longest
    chat_template = base.read_chat_template()
    backbone = base.load(flat_mesh())
  with tempfile.TemporaryDirectory() as folder:
    has_file = isinstance(tokenizer, HuggingFaceTokenizer)
    if has_file:
      path = pathlib.Path(folder) / 'tokenizer.json'
      path.write_text(tokenizer.json, encoding='utf-8')
    if chat_template:
      path = pathlib.Path(folder) / 'chat_template.jinja'
      path.write_text(chat_template, encoding='utf-8')
    save_model(
      to,
      backbone,
      config,
      layout,
      head,
      tokenizer_from=folder if has_file else None,
      options=SaveOptions(max_length=longest, dtype=dtype),
    )
  if head is not None:
    built_in = '' if has_file else tokenizer.name
    write_format(pathlib.Path(to), separator, built_in)
  if end is not None:
    # What transformers' generate reads.
    stops = {'eos_token_id': end}
    write_json(pathlib.Path(to) / 'generation_config.json', stops)
  count = sum(leaf.size for leaf in jax.tree.leaves(backbone))
  beside = 'tokenizer.json' if has_file else 'no tokenizer, it is built in here'
  return f'{to}: {count:,} parameters of the backbone, {layout}; {beside}'


def _is_run(folder: paths.Path) -> bool:
  with paths.told_in_a_line(folder):
    return (folder / 'model.json').is_file()


def main(argv: Sequence[str]) -> None:
  """Entry point: 0 when done, 2 for a user's fault."""
  parser = argparse.ArgumentParser(
    prog='prm_jax.export',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--from', dest='source', required=True)
  parser.add_argument('--to', required=True, help='a folder that is not there')
  parser.add_argument('--layout', required=True, choices=LAYOUTS)
  parser.add_argument('--step', type=int, help='default: the best checkpoint')
  parser.add_argument('--dtype', choices=DTYPES, help='default: as it is')
  given = parser.parse_args(argv)
  with exit_on_user_error():
    print(export(given.source, given.to, given.layout, given.step, given.dtype))


if __name__ == '__main__':
  main(sys.argv[1:])
