"""Published PRMs against torch, where it is installed."""

import numpy as np
import pytest

REASON = 'parity needs torch and transformers: pip install torch transformers'
pytest.importorskip('torch', reason=REASON)
pytest.importorskip('transformers', reason=REASON)

import prm_jax  # noqa: E402
from prm_jax.inference.published import LM_STYLES  # noqa: E402
from tests.parity.make_published_golden import reference  # noqa: E402
from tests.shared.golden_scores import F32, chains, golden  # noqa: E402
from tests.shared.published_models import STYLES, write_model  # noqa: E402


@pytest.mark.parametrize('style', STYLES)
def test_scores_and_golden_files(tmp_path, style):
  write_model(style, tmp_path)
  scorer = prm_jax.load(tmp_path, style=style if style in LM_STYLES else '')
  ours = scorer.score_many(chains(style))
  for found, record in zip(ours, golden(style), strict=True):
    ids, scores = reference(style, tmp_path, record['problem'], record['steps'])
    assert ids == record['ids']
    np.testing.assert_allclose(record['scores'], scores, **F32)
    np.testing.assert_allclose(found, scores, **F32)


@pytest.mark.parametrize('style', STYLES)
def test_other_texts(tmp_path, style):
  """Blanks and newlines where the texts allow them, and a long chain."""
  write_model(style, tmp_path)
  scorer = prm_jax.load(tmp_path, style=style if style in LM_STYLES else '')
  problem = '  How many\n\nducks are 12345 + 0?'
  steps = [f'{"Then" * (i % 3)} {i} * 7 =\n {i * 7}é' for i in range(12)]
  ids, scores = reference(style, tmp_path, problem, steps)
  encoding = scorer.format.encode(problem, steps)
  np.testing.assert_array_equal(encoding.tokens, ids[: len(encoding.tokens)])
  np.testing.assert_allclose(scorer.score(problem, steps), scores, **F32)
