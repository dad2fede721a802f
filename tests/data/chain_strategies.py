"""Draws any chain that can be written to disk, for property tests."""

from hypothesis import strategies as st

from prm_jax.data.chains import SOURCES, Chain, StepLabel

TEXT = st.text(st.characters(codec='utf-8'), max_size=6)
STEP = TEXT.filter(lambda text: bool(text.strip()))
COUNTS = st.integers(0, 2**63 - 1)
JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | TEXT | st.floats(-1e9, 1e9),
  lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner),
  max_leaves=4,
)


@st.composite
def step_labels(draw):
  counts = sorted(draw(st.tuples(COUNTS, COUNTS)))
  neutral = draw(st.booleans())
  return StepLabel(
    1.0 if neutral else draw(st.none() | st.floats(0, 1)),
    draw(st.sampled_from(SOURCES)),
    *draw(st.sampled_from([(None, None), tuple(counts)])),
    neutral=neutral,
  )


@st.composite
def any_chain(draw):
  steps = draw(st.lists(STEP, min_size=1, max_size=4))
  labels = draw(st.just(()) | st.tuples(*[step_labels() for _ in steps]))
  return Chain(
    draw(STEP),
    tuple(steps),
    draw(st.none() | TEXT),
    draw(st.none() | st.booleans()),
    labels,
    draw(st.dictionaries(TEXT, JSON, max_size=3)),
  )
