"""Verifiers: exact arithmetic, equality of answers, unit tests of code.

`calculator.py` checks the equations in a step. `answers.py` decides whether two
final answers are equal, with `spellings.py` to normalise them and
`quantities.py` to read values with units. `final_answer.py` finds the answer
that a chain states. `sandbox.py` runs a program's unit tests in isolation.
Labels, search, evaluation and rewards call them. No file here imports JAX.
"""
