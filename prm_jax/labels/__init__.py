"""Labels the steps of chains automatically, without human annotators.

Each source is a module with a `label` function and a settings dataclass:
`rollouts` and `omega` sample completions from a policy, `judge` asks a language
model, `verifier` calculates or runs tests, `corruption` plants known errors.
`active` selects the chains that are worth labelling, and `consensus` keeps
those on which two sources agree. `labelling.py` defines what a source is.
"""
