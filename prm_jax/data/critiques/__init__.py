"""Critiques: texts that check a chain step by step and end with a verdict.

    styles     what a critic is asked, and what it says of the first wrong step
    questions  the plain question, which a critic that was trained here is asked
    writing    exact critiques of chains whose domain is known
    sentences  what steps in sentences have to be, by a right solution
    examples   chains with labels -> questions with critiques to learn from

A critic is a policy whose problem is a question about a chain, whose steps are
the lines of a critique, and whose answer is the verdict.
"""
