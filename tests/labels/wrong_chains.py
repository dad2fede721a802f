"""Wrong chains of the arithmetic domain with exact values, for OmegaPRM."""

import dataclasses

from prm_jax.data.domains import arithmetic
from prm_jax.data.targets import TargetConfig
from prm_jax.inference.driver import CannotDo

DEFAULT = arithmetic.ArithmeticConfig()
# Long chains in a domain where errors seldom cancel: 97 is a prime, and a
# wrong result equals the right one by chance once in 97 times.
LONG = arithmetic.ArithmeticConfig(modulus=97, operations=16)
# Hard labels at the threshold of the search, nothing masked.
HARD = TargetConfig(after_first_error='keep', hard_above=0.0)


def stronger(domain):
  """A solver with the same wrong beliefs that uses them a tenth as often."""
  return dataclasses.replace(domain, use_wrong=0.1, slip=0.005)


def wrong_chains(domain, count, completer=None, seed=0):
  """Wrong chains, and the completer's exact value after each step."""
  transitions = arithmetic.make_solver(domain)
  problems = arithmetic.sample_problems(domain, count, seed)
  results = arithmetic.sample_results(transitions, problems, 2, seed)
  values = arithmetic.prefix_values(
    arithmetic.make_solver(completer or domain), problems, domain.modulus
  )
  exact = arithmetic.chain_values(values, results)
  chains = arithmetic.to_chains(domain, problems, results)
  wrong = [i for i, chain in enumerate(chains) if not chain.outcome]
  exact = exact.reshape(len(chains), -1)[wrong]
  return [chains[i] for i in wrong], exact


def found_error(labelled, config):
  """The first error by the labels; None for a CannotDo."""
  if isinstance(labelled, CannotDo):
    return None
  values = [each.value for each in labelled.labels]
  return next(i for i, v in enumerate(values) if v <= config.threshold)
