"""Evaluations: pure numpy functions from scores and labels to plain numbers.

They stand after scoring and before the report. Every function takes arrays
and gives Python floats and lists ready for JSON, with None where a number is
undefined (never NaN). Shapes: Q problems, N samples of a problem, K sizes n,
M chains, P steps, B bootstrap resamples.

Ragged steps come in ONE form: padded arrays with a mask (`steps.pad` makes
them from lists). The column is the step's index in its chain, always.

- Metrics over steps (`prmbench`, `calibration`) take `step_scores`,
  `step_labels` and `step_mask`, all [M, P]; mask False is padding or a step
  whose label is unknown. A label is the probability that the step is right.
- Metrics over chains (`localisation`, `diagnostics`) take `step_scores` and
  `step_mask` [M, P] with `labels` [M], the index of the first wrong step or
  -1; here mask True is every step that exists, labelled or not. The mask of
  known labels would tell the predictor where the annotator stopped. A chain
  that is longer than the model's window has steps without a score: `read` [M]
  counts those that have one (None: all do). They are the chain's first.

Scores behind a False mask are never looked at. A NaN score behind a True one
is refused by name: dropping it would shift what follows.
"""
