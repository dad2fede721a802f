"""The arithmetic domain's solver as a policy that counts and fails."""

from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.runtime.errors import UserError

SOLVER = SolverPolicy(ArithmeticConfig())
PROBLEMS = [f'mod 10 : {i} + 4 * {i} - 7' for i in range(10)]


class Counting:
  """Is the solver, and records the number of requests in each round.

  Every `loses`-th request gets no answer, and after `gives_up` rounds the
  policy gives up.
  """

  name = 'counting'

  def __init__(self, loses=0, gives_up=0):
    self.rounds, self.loses, self.count = [], loses, 0
    self.gives_up = gives_up

  def complete(self, requests):
    if self.gives_up and len(self.rounds) == self.gives_up:
      raise UserError('the server\nis gone')
    self.rounds.append(len(requests))
    answers = SOLVER.complete(requests)
    for i in range(len(requests)):
      self.count += 1
      if self.loses and self.count % self.loses == 0:
        answers[i] = [None] * len(answers[i])
    return answers
