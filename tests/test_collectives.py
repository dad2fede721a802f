"""Collectives read from program text, and what a ring sends, by hand."""

from prm_jax.collectives import Collective, read_collectives

TEXT = """
  %all-gather.1 = bf16[1,3584,4736]{2,1,0:T(8,128)} all-gather(%p.1), \
channel_id=94, replica_groups=[4,64]<=[64,4]T(1,0), dimensions={1}
  %all-gather.9 = bf16[1,3584,4736]{2,1,0:T(8,128)} all-gather(%p.9), \
channel_id=94, replica_groups=[4,64]<=[64,4]T(1,0), dimensions={1}
  %ag = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(f32[4,8] %p), \
channel_id=2, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  %all-reduce.59 = (f32[]{:T(128)}, bf16[2,3]{1,0}) all-reduce(%a, %b), \
channel_id=41, replica_groups=mesh['axis_0'=4,'axis_1'=64] {'axis_1'}, to=%add
  %add.1 = f32[8]{0} add(%x, %y), metadata={op_name="all-reduce(channel_id=7"}
"""


def test_text_by_hand():
  assert read_collectives(TEXT, 256) == [
    Collective('all-gather', 3584 * 4736 * 2, 64),
    Collective('all-gather', 16 * 8 * 4, 4),
    Collective('all-reduce', 4 + 12, 64),
  ]


def test_what_a_ring_sends():
  sent = {
    kind: Collective(kind, 120.0, 4).sent
    for kind in ('all-gather', 'all-reduce', 'reduce-scatter')
  }
  # 3 of 4 parts of 30; twice that; 3 parts of 120.
  assert sent == {
    'all-gather': 90.0,
    'all-reduce': 180.0,
    'reduce-scatter': 360.0,
  }
