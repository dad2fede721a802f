"""Model configs check themselves when made."""

import dataclasses

import pytest

from prm_jax.runtime.errors import UserError
from tests.models.plain_transformer import CONFIG


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'n_heads': 0}, 'model.n_heads=0: expected >= 1'),
    ({'n_heads': 0, 'head_dim': 0}, 'model.n_heads=0: expected >= 1'),
    ({'d_model': 0}, 'model.d_model=0'),
    ({'n_layers': -1}, 'model.n_layers=-1'),
    ({'d_ff': 0}, 'model.d_ff=0'),
    ({'scan_unroll': 0}, 'model.scan_unroll=0'),
    ({'n_kv_heads': 3}, 'model.n_kv_heads=3 must divide model.n_heads=4'),
    ({'n_kv_heads': 0}, 'model.n_kv_heads=0 must divide'),
    ({'head_dim': 5}, 'model.head_dim=5: rotary embeddings need an even'),
    ({'d_model': 4, 'head_dim': 0}, 'model.head_dim=1'),
    ({'remat': 'some'}, "model.remat='some': expected one of"),
    ({'dtype': 'float16'}, "model.dtype='float16': expected one of"),
  ],
)
def test_a_config_checks_itself(change, message):
  with pytest.raises(UserError, match=message):
    dataclasses.replace(CONFIG, **change)


def test_head_dim_follows_from_the_width():
  assert dataclasses.replace(CONFIG, head_dim=0).head_dim == 4
