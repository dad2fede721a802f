"""A critic that follows a function: question, lines so far, sample -> lines."""

from prm_jax.inference.protocols import CannotAsk, Chosen, Completion


class ScriptedCritic:
  """Is a `protocols.Critic`.

  Args:
    write: returns the lines that follow; None stands for a lost critique, and a
      text for the reason why a question cannot be asked.
    likely: returns the log-probabilities of a Choice's options.

  Attributes:
    requests, choices: all that was asked.
  """

  name = 'scripted'
  counts_flops = True

  def __init__(self, write, likely=lambda choice: ()):
    self._write, self._likely = write, likely
    self.requests, self.choices = [], []

  def complete(self, requests):
    written = [
      [
        self._write(request.problem, request.steps, request.first + i)
        for i in range(request.samples)
      ]
      for request in requests
    ]
    refused = {
      request: lines[0]
      for request, lines in zip(requests, written, strict=True)
      if isinstance(lines[0], str)
    }
    if refused:
      raise CannotAsk(refused)
    self.requests += requests
    return [
      [
        None
        if lines is None
        else Completion(tuple(lines), True, len(lines), 10, 0.0, flops=7.0)
        for lines in samples
      ]
      for samples in written
    ]

  def choose(self, choices):
    self.choices += choices
    return [Chosen(self._likely(choice), 3, 2.0) for choice in choices]
