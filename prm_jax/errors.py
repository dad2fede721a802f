"""The one exception that reaches a user as a single line.

Raised at the borders (config, files, records, checkpoints) wherever a person
can cause and cure the fault. `main.py` prints it without a traceback and exits
with code 2; everything else is a bug and keeps its traceback.
"""


class UserError(ValueError):
  """Names the thing that is wrong and what to do about it, in one line."""
