"""Program text by hand: results, loops, and what cannot be seen."""

from prm_jax.aot.hlo import Array, read_program, trips

TEXT = """
HloModule jit_step, is_scheduled=true

%cond (p: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(28)
  %p = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%body (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %two = s32[]{:T(128)} constant(2)
  %q = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  %x = f32[8]{0:T(128)S(1)} get-tuple-element(%q), index=1
  %next = s32[]{:T(128)} add(%j, %two), metadata={op_name="a = b (c"}
  ROOT %t = (s32[]{:T(128)}, f32[8]{0:T(128)}) tuple(%next, %x)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %start = s32[]{:T(128)} constant(4)
  %copied = s32[]{:T(128)} copy(%start)
  %a = f32[8]{0:T(128)} parameter(0)
  %first = (s32[]{:T(128)}, f32[8]{0:T(128)}) tuple(%copied, /*index=1*/%a)
  %loop = (s32[]{:T(128)}, f32[8]{0:T(128)}) while(%first), \
condition=%cond, body=%body
  ROOT %out = f32[8]{0:T(128)} get-tuple-element(%loop), index=1
}
"""


def loop_of(text):
  program = read_program(text)
  here = program.computations[program.entry]
  return trips(here['loop'], here, program.computations)


def test_what_is_read():
  program = read_program(TEXT)
  assert program.entry == 'main'
  assert list(program.computations) == ['cond', 'body', 'main']
  body = program.computations['body']
  assert body['x'].arrays == (Array((8,), 32.0, False),)
  assert body['q'].arrays[1] == Array((8,), 32.0, True)
  assert body['next'].kind == 'add'
  assert body['next'].operands == ('j', 'two')
  first = program.computations['main']['first']
  assert first.kind == 'tuple'
  assert first.operands == ('copied', 'a')


def test_a_loop_from_4_to_28_by_2():
  assert loop_of(TEXT) == 12
  # Below 27 the last is 26, too.
  assert loop_of(TEXT.replace('constant(28)', 'constant(27)')) == 12


def test_a_loop_that_says_its_length():
  known = TEXT.replace(
    'body=%body\n',
    'body=%body, backend_config={"known_trip_count":{"n":"7"}}\n',
  )
  assert loop_of(known) == 7


def test_loops_whose_length_is_data_are_not_guessed():
  for known, unknown in (
    ('constant(28)', 'parameter(1)'),
    ('copy(%start)', 'parameter(1)'),
    ('constant(2)', 'parameter(1)'),
    ('direction=LT', 'direction=NE'),
  ):
    assert known in TEXT
    assert loop_of(TEXT.replace(known, unknown)) is None
