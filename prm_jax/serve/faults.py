"""Defines what a client is told when it gets no scores."""


class Refused(Exception):
  """Says why a request gets no scores: an HTTP status, and one line.

  Attributes:
    status: 4xx or 503.
    message: what is wrong, and what cures it.
    field: the part of the body that is at fault, '' if none is.
    wait: seconds after which the client may ask again; 0 if that is no use.
  """

  def __init__(
    self, status: int, message: str, field: str = '', wait: int = 0
  ) -> None:
    super().__init__(message)
    self.status, self.message = status, ' '.join(message.split())
    self.field, self.wait = field, wait
