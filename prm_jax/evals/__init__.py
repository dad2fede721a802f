"""Evaluates scores, searches and policies against what is known to be right.

Metrics are pure NumPy functions of arrays, which `suite` makes from chains.
Whole evaluations (`prm`, `policy`, `search`, `abstain`, `scorers`) take chains.
Results are Python floats and lists ready for JSON, with None (never NaN) where
a number is undefined. Shapes: Q problems, N samples of a problem, K sizes n,
M chains, P steps, B bootstrap resamples.

Metrics take steps as padded arrays with a mask (`steps.pad` makes them from
lists); column p is step p of the chain.

- Metrics over steps (`prmbench`, `calibration`) take `step_scores`,
  `step_labels` and `step_mask`, all [M, P]. The mask is False at padding and at
  steps whose label is unknown. A label is the probability that the step is
  right.
- Metrics over chains (`localisation`, `diagnostics`) take `step_scores` and
  `step_mask` [M, P] with `labels` [M], the index of the first wrong step or -1.
  Here the mask is True at every step that exists, labelled or not: a mask of
  known labels would tell the predictor where the annotator stopped. Steps of a
  chain beyond the model's window have no score. `read` [M] counts the steps at
  its beginning that have one; None means all.

Scores where the mask is False are never used. A NaN score where it is True
raises an error that names the step, because dropping it would shift the steps
after it.
"""
