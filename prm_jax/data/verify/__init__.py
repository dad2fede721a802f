"""Truth without a person: exact arithmetic, equal answers, unit tests.

`calculator.py` checks the equations in a step, `answers.py` says whether two
final answers are the same (`spellings.py` writes them in one way first, and
`quantities.py` reads values with units), `sandbox.py` runs a program's unit
tests. Label sources and rewards read them. No file here imports JAX.
"""
