"""Truth without a person: exact arithmetic, equal answers, unit tests.

`calculator.py` checks the equations in a step, `answers.py` says whether two
final answers are the same, `sandbox.py` runs a program's unit tests. Label
sources and rewards read them. No file here imports JAX.
"""
