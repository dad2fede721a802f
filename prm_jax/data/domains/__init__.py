"""Domains make problems and chains whose step labels are known exactly.

    arithmetic   chains of symbols, written by a solver with misconceptions;
                 arithmetic_text reads them back, arithmetic_corruptions plants
                 errors in them
    logic        propositional deductions by such a solver, some of them without
                 an answer; logic_text reads them back
    code         chains of statements, written by such a solver, too, and judged
                 by running them; code_operations lists the statements,
                 code_text reads them back and judges any text in a sandbox
    words        chains of sentences from templates (word_templates)
    worked_answers   chains of sentences that people wrote

`known` finds the first three by a problem's text. The last two share equations
(reads solutions), corruptions (plants errors) and planting (makes chains with
labels).
"""
