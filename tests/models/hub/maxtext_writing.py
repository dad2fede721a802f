"""Writes tensors of the Hub as MaxText saves them, without our table.

The layout is that of its own converter, checkpoint_conversion/to_maxtext.py.
"""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import unflatten_dict

PARTS = {
  'self_attention.query': 'self_attn.q_proj',
  'self_attention.key': 'self_attn.k_proj',
  'self_attention.value': 'self_attn.v_proj',
  'self_attention.out': 'self_attn.o_proj',
  'self_attention.query_norm': 'self_attn.q_norm',
  'self_attention.key_norm': 'self_attn.k_norm',
  'mlp.wi_0': 'mlp.gate_proj',
  'mlp.wi_1': 'mlp.up_proj',
  'mlp.wo': 'mlp.down_proj',
  'pre_self_attention_layer_norm': 'input_layernorm',
  'post_self_attention_layer_norm': 'post_attention_layernorm',
}


def in_their_form(config, part, x):
  """One tensor of a layer."""
  head = config.get('head_dim') or (
    config['hidden_size'] // config['num_attention_heads']
  )
  own = part.rpartition('.')[2]
  if part.startswith('self_attention') and x.ndim == 1 and 'norm' not in part:
    return x.reshape(-1, head)
  if x.ndim == 1:
    return x
  x = x.T
  if own == 'out':
    return x.reshape(-1, head, x.shape[1])
  if own in ('query', 'key', 'value'):
    x = x.reshape(len(x), -1, head)
  if config['model_type'] != 'llama' or own not in ('query', 'key'):
    return x
  if own == 'query':
    x = x / np.float32(np.sqrt(head))
  if 'rope_scaling' not in config:  # MaxText's rope_type is 'default'
    return x
  first, second = np.split(x, 2, -1)
  return np.stack([first, second], -1).reshape(x.shape)


def arrays_of(config, tensors, scanned):
  """The arrays by their path."""
  found = {
    'token_embedder/embedding': tensors['model.embed_tokens.weight'],
    'decoder/decoder_norm/scale': tensors['model.norm.weight'],
  }
  if 'lm_head.weight' in tensors:
    found['decoder/logits_dense/kernel'] = tensors['lm_head.weight'].T
  layers = range(config['num_hidden_layers'])
  for part, theirs in PARTS.items():
    for kind in ('weight', 'bias'):
      names = [f'model.layers.{i}.{theirs}.{kind}' for i in layers]
      if names[0] not in tensors:
        continue
      leaf = 'bias' if kind == 'bias' else 'kernel'
      leaf = 'scale' if 'norm' in part else leaf
      path = f'{part.replace(".", "/")}/{leaf}'
      own = [in_their_form(config, part, tensors[name]) for name in names]
      if scanned:
        found[f'decoder/layers/{path}'] = np.stack(own, 1)
      else:
        for i, x in zip(layers, own, strict=True):
          found[f'decoder/layers_{i}/{path}'] = x
  return found


def write_maxtext(
  directory: pathlib.Path, config, arrays, dtype='float32', moments=False
):
  """Writes `items` of step 0 and config.json; returns the step's folder."""
  tree = unflatten_dict(
    {path: jnp.asarray(x, dtype) for path, x in arrays.items()}, sep='/'
  )
  state = {'step': 0, 'params': {'params': tree}, 'opt_state': {}}
  if moments:
    state['opt_state'] = {'mu': {'params': tree}}
  handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
  options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
  manager = ocp.CheckpointManager(
    directory,
    item_names=('items',),
    item_handlers={'items': handler},
    options=options,
  )
  saved = ocp.args.PyTreeSave(item=state)
  manager.save(0, args=ocp.args.Composite(items=saved))
  manager.close()
  folder = directory / '0'
  (folder / 'config.json').write_text(json.dumps(config))
  return folder
