"""Work counted by hand in programs as XLA writes them for a GPU."""

import math

from tests.shared.compiled_elsewhere import work_of


def test_a_product_by_cublas():
  """Its flops are in its configuration; what it works in is not traffic."""
  for target, left, right, out, inner, config in (
    # [512, 256] x [256, 128], with a bias.
    ('gemm', '512,256', '256,128', '512,128', 256, ('["1"]', '[]')),
    ('lt$matmul', '512,256', '256,128', '512,128', 256, ('["1"]', '[]')),
    # The gradient of the right one: [512, 256] by [512, 128].
    ('lt$matmul', '512,256', '512,128', '256,128', 512, ('["0"]', '[]')),
    # Four products of [64, 32] and [96, 32].
    ('lt$matmul', '4,64,32', '4,96,32', '4,64,96', 32, ('["2"]', '["0"]')),
  ):
    contracted, batch = config
    work = work_of(
      [
        f'%x = bf16[{left}]{{1,0}} parameter(0)',
        f'%w = bf16[{right}]{{1,0}} parameter(1)',
        '%b = bf16[128]{0} parameter(2)',
        f'%y = (bf16[{out}]{{1,0}}, s8[4194304]{{0}}) custom-call(%x, %w, %b), '
        f'custom_call_target="__cublas${target}", '
        'metadata={op_name="jit(f)/dot_general"}, '
        'backend_config={"operation_queue_id":"0","gemm_backend_config":{'
        '"alpha_real":1,"beta":0,"dot_dimension_numbers":{'
        f'"lhs_contracting_dimensions":{contracted},'
        '"rhs_contracting_dimensions":["0"],'
        f'"lhs_batch_dimensions":{batch},"rhs_batch_dimensions":{batch}}},'
        '"epilogue":"BIAS","autotune_workspace_size":"4194304"}}',
        f'ROOT %r = bf16[{out}]{{1,0}} get-tuple-element(%y), index=0',
      ]
    )
    sizes = [
      math.prod(map(int, dims.split(','))) for dims in (left, right, out)
    ]
    assert work.flops == 2 * sizes[2] * inner
    assert work.memory_bytes == 2 * (sum(sizes) + 128)


def test_a_product_by_triton():
  """A fusion with the product inside, whose weights a layer slices."""
  fused = """
%gemm_fusion_dot.35_computation (x: bf16[64,32], w: f32[28,32,16], i: s32[]) \
-> bf16[64,16] {
  %x = bf16[64,32]{1,0} parameter(0)
  %w = f32[28,32,16]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %slice = f32[1,32,16]{2,1,0} dynamic-slice(%w, %i, %zero, %zero)
  %same = f32[32,16]{1,0} bitcast(%slice)
  %half = bf16[32,16]{1,0} convert(%same)
  ROOT %dot.1 = bf16[64,16]{1,0} dot(%x, %half), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, backend_config={"sizes":["16"]}
}
"""
  work = work_of(
    [
      '%p = bf16[64,32]{1,0} parameter(0)',
      '%q = f32[28,32,16]{2,1,0} parameter(1)',
      '%n = s32[] parameter(2)',
      'ROOT %gemm_fusion_dot.35 = bf16[64,16]{1,0} fusion(%p, %q, %n), '
      'kind=kCustom, calls=%gemm_fusion_dot.35_computation, '
      'backend_config={"fusion_backend_config":'
      '{"kind":"__triton_nested_gemm_fusion"}}',
    ],
    fused,
  )
  assert work.flops == 2 * 64 * 32 * 16
  assert work.memory_bytes == 2 * 64 * 32 + 4 * 32 * 16 + 4 + 2 * 64 * 16


def test_attention_by_cudnn():
  """Its work is the plan's to know; its traffic is that of its arrays."""
  work = work_of(
    [
      '%q = bf16[4,512,2,16]{3,2,1,0} parameter(0)',
      '%k = bf16[4,512,1,16]{3,2,1,0} parameter(1)',
      '%mask = bf16[4,1,512,512]{3,2,1,0} parameter(2)',
      'ROOT %a = (bf16[4,2,512,16]{3,1,2,0}, f32[4,2,512]{2,1,0}, '
      'u8[1048576]{0}) custom-call(%q, %k, %k, %mask), '
      'custom_call_target="__cudnn$fmhaScaleBiasSoftmax"',
    ]
  )
  arrays = 2 * (4 * 512 * 2 * 16) + 2 * (4 * 512 * 16) + 4 * 512 * 512
  assert work.memory_bytes == 2 * arrays + 4 * (4 * 2 * 512)
  assert work.flops == 0


def test_a_loop_and_a_command_buffer_of_a_gpu():
  """The loop says how often it runs; a graph of kernels is a call."""
  more = """
%buffer (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  ROOT %y = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

%body (t: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %t = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %a = f32[8,8]{1,0} get-tuple-element(%t), index=1
  %b = f32[8,8]{1,0} call(%a), to_apply=%buffer
  ROOT %u = (s32[], f32[8,8]{1,0}) tuple(%i, %b)
}

%condition (t: (s32[], f32[8,8])) -> pred[] {
  %t = (s32[], f32[8,8]{1,0}) parameter(0)
  ROOT %go = pred[] constant(true)
}
"""
  work = work_of(
    [
      '%s = (s32[], f32[8,8]{1,0}) parameter(0)',
      'ROOT %w = (s32[], f32[8,8]{1,0}) while(%s), condition=%condition, '
      'body=%body, backend_config={"known_trip_count":{"n":"28"},'
      '"known_init_step":{"init":"0","step":"1"}}',
    ],
    more,
  )
  assert work.flops == 28 * 2 * 8**3
  # It is read as the left factor and as the right one.
  assert work.memory_bytes == 28 * 3 * (4 * 8 * 8)
  assert work.unknown_loops == 0


def test_collectives_that_a_gpu_starts():
  more = """
%wrapped (p: f32[120]) -> f32[30] {
  %p = f32[120]{0} parameter(0)
  ROOT %r = f32[30]{0} reduce-scatter(%p), replica_groups=[64,4]<=[256]
}
"""
  parts = [
    '%x = f32[120]{0} parameter(0)',
    '%y = f32[30]{0} parameter(1)',
  ]
  # Three parts of 30 floats, however it is written.
  for start in (
    '((f32[120]{0}), f32[30]{0}) async-start(%x), calls=%wrapped',
    '((f32[120]{0}), f32[30]{0}) reduce-scatter-start(%x), '
    'replica_groups=[64,4]<=[256]',
  ):
    work = work_of([*parts, f'ROOT %s = {start}'], more)
    assert work.sent_bytes == {'reduce-scatter': 360}
    assert work.memory_bytes == 480 + 120
  work = work_of(
    [
      *parts,
      '%g = (f32[30]{0}, f32[120]{0}) all-gather-start(%y), dimensions={0}, '
      'replica_groups=[64,4]<=[256], '
      'backend_config={"collective_backend_config":{"is_sync":true}}',
      '%d = f32[120]{0} all-gather-done(%g)',
      '%a = f32[30]{0} all-reduce-start(%y), replica_groups=[64,4]<=[256]',
      'ROOT %e = f32[30]{0} all-reduce-done(%a)',
    ]
  )
  assert work.sent_bytes == {'all-gather': 360, 'all-reduce': 180}
  assert work.memory_bytes == (120 + 480) + (120 + 120)


def test_a_layer_is_written_in_place_below_another_name():
  fused = """
%put (stack: f32[28,100], row: f32[1,100], i: s32[]) -> f32[2800] {
  %stack = f32[28,100]{1,0} parameter(0)
  %row = f32[1,100]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %new = f32[28,100]{1,0} dynamic-update-slice(%stack, %row, %i, %i)
  ROOT %flat = f32[2800]{0} bitcast(%new)
}
"""
  work = work_of(
    [
      '%s = f32[28,100]{1,0} parameter(0)',
      '%r = f32[1,100]{1,0} parameter(1)',
      '%n = s32[] parameter(2)',
      'ROOT %f = f32[2800]{0} fusion(%s, %r, %n), kind=kLoop, calls=%put',
    ],
    fused,
  )
  assert work.memory_bytes == 400 + 400 + 4


def test_a_product_by_cublas_of_a_layer_that_it_slices():
  """The library is called within a fusion; it gets memory to work in."""
  fused = """
%dynamic-slice-fusion (p0: bf16[28,32,16], p1: bf16[64,32]) -> (bf16[64,16], \
s8[4096]) {
  %p1 = bf16[64,32]{1,0} parameter(1)
  %p0 = bf16[28,32,16]{2,1,0} parameter(0)
  %slice = bf16[1,32,16]{2,1,0} slice(%p0), slice={[3:4], [0:32], [0:16]}
  %same = bf16[32,16]{1,0} bitcast(%slice)
  ROOT %made = (bf16[64,16]{1,0}, s8[4096]{0}) custom-call(%p1, %same), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":\
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
}
"""
  work = work_of(
    [
      '%w = bf16[28,32,16]{2,1,0} parameter(0)',
      '%x = bf16[64,32]{1,0} parameter(1)',
      '%y = (bf16[64,16]{1,0}, s8[4096]{0}) fusion(%w, %x), kind=kCustom, '
      'calls=%dynamic-slice-fusion',
      'ROOT %r = bf16[64,16]{1,0} get-tuple-element(%y), index=0',
    ],
    fused,
  )
  assert work.flops == 2 * 64 * 16 * 32
  assert work.memory_bytes == 2 * (32 * 16 + 64 * 32 + 64 * 16)


def test_a_fusion_that_runs_beside_others():
  """It lists its operands first; a layer is written where it belongs."""
  fused = """
%write (p0: bf16[30,64,32], p1: s32[], p2: bf16[64,32]) -> bf16[30,64,32] {
  %p0 = bf16[30,64,32]{2,1,0} parameter(0)
  %p2 = bf16[64,32]{1,0} parameter(2)
  %same = bf16[1,64,32]{2,1,0} bitcast(%p2)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %into = bf16[30,64,32]{2,1,0} dynamic-update-slice(%p0, %same, %p1, \
%zero, %zero)
}
"""
  work = work_of(
    [
      '%all = bf16[30,64,32]{2,1,0} parameter(0)',
      '%i = s32[] parameter(1)',
      '%one = bf16[64,32]{1,0} parameter(2)',
      '%start = ((bf16[30,64,32]{2,1,0}, s32[], bf16[64,32]{1,0}), '
      'bf16[30,64,32]{2,1,0}, u32[]) fusion-start(%all, %i, %one), '
      'kind=kLoop, calls=%write',
      'ROOT %done = bf16[30,64,32]{2,1,0} fusion-done(%start)',
    ],
    fused,
  )
  # One layer is read and written, and the number of the layer read.
  assert work.memory_bytes == 2 * 2 * 64 * 32 + 4
