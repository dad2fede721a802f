"""Work counted by hand, and of programs that XLA itself counts."""

import jax
import jax.numpy as jnp
import pytest

from prm_jax.aot.hlo import read_program
from prm_jax.aot.work import count_work
from tests.shared.compiled_elsewhere import work_of


def compiled_work(function, *arrays):
  compiled = jax.jit(function).lower(*arrays).compile()
  return count_work(read_program(compiled.as_text()), 1), compiled


def test_a_product_has_the_flops_that_xla_counts():
  x, y = jnp.zeros((8, 300)), jnp.zeros((300, 20))
  work, compiled = compiled_work(jnp.matmul, x, y)
  assert work.flops == 2 * 8 * 300 * 20 == compiled.cost_analysis()['flops']
  assert work.memory_bytes == 4 * (8 * 300 + 300 * 20 + 8 * 20)


def test_a_loop_counts_as_often_as_it_runs():
  x = jnp.zeros((64, 64))

  def run(x):
    return jax.lax.scan(lambda x, _: (x @ x, None), x, length=9)[0]

  work, compiled = compiled_work(run, x)
  once = 2 * 64**3
  assert work.flops == 9 * once
  assert work.unknown_loops == 0
  assert compiled.cost_analysis()['flops'] < 2 * once  # why this file exists


def test_a_loop_over_data_is_counted_once_and_told():
  def run(x, n):
    return jax.lax.fori_loop(0, n, lambda _, x: x @ x, x)

  work, _ = compiled_work(run, jnp.zeros((64, 64)), 9)
  assert (work.flops, work.unknown_loops) == (2 * 64**3, 1)


def test_the_branch_that_does_more_counts():
  def run(go, x):
    return jax.lax.cond(go, lambda x: x @ x @ x, lambda x: x, x)

  work, _ = compiled_work(run, True, jnp.zeros((64, 64)))
  assert work.flops == 2 * 2 * 64**3


@pytest.mark.parametrize(
  ('left', 'right', 'out', 'attributes', 'flops'),
  [
    # A product: [4096, 3584] x [3584, 512].
    (
      '4096,3584',
      '3584,512',
      '4096,512',
      'dim_labels=bf_io->bf',
      4096 * 3584 * 512,
    ),
    # A product to 12 heads, written as a window that slides over padding:
    # every output position meets the one input position once.
    (
      '4,1024,1,96',
      '1,12,96,128',
      '4,1024,12,128',
      'window={size=1x12 pad=0_0x11_11 rhs_reversal=0x1}, '
      'dim_labels=0b1f_01io->0b1f',
      4 * 1024 * 96 * 12 * 128,
    ),
    # A convolution of width 3 without padding, by 2.
    (
      '1,9,5',
      '3,5,7',
      '1,4,7',
      'window={size=3 stride=2}, dim_labels=b0f_0io->b0f',
      4 * 3 * 5 * 7,
    ),
  ],
)
def test_products_as_a_tpu_writes_them(left, right, out, attributes, flops):
  work = work_of(
    [
      f'%x = bf16[{left}]{{1,0}} parameter(0)',
      f'%w = bf16[{right}]{{1,0}} parameter(1)',
      f'ROOT %y = bf16[{out}]{{1,0}} convolution(%x, %w), {attributes}',
    ]
  )
  assert work.flops == 2 * flops


def test_what_a_ring_sends():
  part = '%p = f32[30]{0} parameter(0)'
  for operation, sent in (
    # 3 of 4 parts of 30 floats; twice that; 3 parts of 30.
    ('f32[120]{0} all-gather(%p), replica_groups=[64,4]<=[256]', 360),
    ('f32[30]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}', 180),
    ('f32[30]{0} reduce-scatter(%p), replica_groups=[64,4]<=[256]', 360),
    ('f32[30]{0} collective-permute(%p), source_target_pairs={{0,1}}', 120),
    (
      "f32[30]{0} all-reduce(%p), replica_groups=mesh['axis_0'=4,'axis_1'=64],"
      " device_ids=([64,4]T(1,0)) {'axis_0'}",
      180,
    ),
    ('(f32[30]{0}, f32[120]{0}) all-gather-start(%p), dimensions={0}', 478.125),
  ):
    work = work_of([part, f'ROOT %r = {operation}'])
    assert sum(work.sent_bytes.values()) == sent
  assert work.sent_bytes == {'all-gather': 478.125}
  assert work.largest_gather == 480


def test_a_start_has_its_operands_in_front():
  work = work_of(
    [
      '%p = f32[30]{0} parameter(0)',
      '%q = f32[10]{0} parameter(1)',
      '%s = ((f32[30]{0}, f32[10]{0}), (f32[120]{0}, f32[40]{0})) '
      'all-gather-start(%p, %q), replica_groups=[64,4]<=[256]',
    ]
  )
  assert work.sent_bytes == {'all-gather': 640 * 3 / 4}
  assert work.memory_bytes == 160 + 640


def test_a_reduce_scatter_as_a_tpu_writes_it():
  fused = """
%all-reduce-scatter.7 (x: f32[120]) -> f32[30] {
  %x = f32[120]{0} parameter(0)
  %i = s32[]{:S(6)} constant(0)
  %sum = f32[120]{0} all-reduce(%x), channel_id=1, replica_groups=[64,4]<=[256]
  ROOT %part = f32[30]{0} dynamic-slice(%sum, %i)
}
"""
  work = work_of(
    [
      '%y = f32[120]{0} parameter(0)',
      'ROOT %f = f32[30]{0} fusion(%y), kind=kCustom, '
      'calls=%all-reduce-scatter.7',
    ],
    fused,
  )
  assert work.sent_bytes == {'reduce-scatter': 480 * 3 / 4}


def test_copies_between_memories():
  work = work_of(
    [
      '%y = f32[28,100]{1,0} parameter(0)',
      '%s = ((f32[28,100]{1,0}), f32[1,100]{1,0:S(1)}, s32[]{:S(2)}) '
      'slice-start(%y), slice={[0:1], [0:100]}',
      '%d = f32[1,100]{1,0:S(1)} slice-done(%s)',
      '%c = (f32[1,100]{1,0}, f32[1,100]{1,0:S(1)}, u32[]{:S(2)}) '
      'copy-start(%d)',
    ]
  )
  assert work.memory_bytes == 400 + 400


def test_a_collective_spread_over_fusions_counts_once():
  pieces = '\n'.join(
    f'%piece.{i} (a: f32[8]) -> f32[64] {{\n'
    '  %a = f32[8]{0} parameter(0)\n'
    '  ROOT %g = f32[64]{0} all-gather(%a), channel_id=3, '
    'replica_groups=[1,8]<=[8]\n}\n'
    for i in range(2)
  )
  work = work_of(
    [
      '%x = f32[8]{0} parameter(0)',
      '%one = f32[64]{0} fusion(%x), kind=kCustom, calls=%piece.0',
      'ROOT %two = f32[64]{0} fusion(%x), kind=kCustom, calls=%piece.1',
    ],
    pieces,
  )
  assert work.sent_bytes == {'all-gather': 64 * 4 * 7 / 8}


def test_a_fusion_moves_what_it_slices():
  fused = """
%take (stack: f32[28,100], i: s32[], row: f32[1,100]) -> f32[28,100] {
  %stack = f32[28,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %row = f32[1,100]{1,0:S(1)} parameter(2)
  %same = f32[28,100]{1,0} bitcast(%stack)
  %old = f32[1,100]{1,0} dynamic-slice(%same, %i, %i)
  %sum = f32[1,100]{1,0} add(%old, %row)
  %new = f32[28,100]{1,0} dynamic-update-slice(%stack, %sum, %i, %i)
  ROOT %t = (f32[28,100]{1,0}, f32[1,100]{1,0}) tuple(%new, %sum)
}
"""
  work = work_of(
    [
      '%s = f32[28,100]{1,0} parameter(0)',
      '%n = s32[] parameter(1)',
      '%r = f32[1,100]{1,0:S(1)} parameter(2)',
      'ROOT %f = (f32[28,100]{1,0}, f32[1,100]{1,0:S(1)}) fusion(%s, %n, %r), '
      'kind=kLoop, calls=%take',
    ],
    fused,
  )
  # The slice is read and written in place, beside a counter; the rest stays
  # in the chip's own memory.
  assert work.memory_bytes == 400 + 400 + 4


def test_a_fusion_moves_what_a_fusion_within_it_slices():
  fused = """
%slice (i: s32[], stack: f32[28,100]) -> f32[100] {
  %i = s32[] parameter(0)
  %stack = f32[28,100]{1,0} parameter(1)
  %one = f32[1,100]{1,0} dynamic-slice(%stack, %i, %i)
  ROOT %row = f32[100]{0} bitcast(%one)
}

%outer (all: f32[28,100], n: s32[]) -> f32[100] {
  %all = f32[28,100]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %row = f32[100]{0} fusion(%n, %all), kind=kLoop, calls=%slice
  ROOT %twice = f32[100]{0} add(%row, %row)
}
"""
  work = work_of(
    [
      '%s = f32[28,100]{1,0} parameter(0)',
      '%n = s32[] parameter(1)',
      'ROOT %f = f32[100]{0} fusion(%s, %n), kind=kOutput, calls=%outer',
    ],
    fused,
  )
  # A row of the stack, the result and a counter.
  assert work.memory_bytes == 400 + 400 + 4
