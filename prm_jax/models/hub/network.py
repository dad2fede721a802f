"""Tells errors of the network from faults of this code."""


def is_network_error(error: BaseException) -> bool:
  """Says whether an error is one of a connection to the Hugging Face Hub.

  huggingface_hub lets some errors of its HTTP client through, which are no
  OSErrors, such as that of a connection that ends within a file.
  """
  client = type(error).__module__.partition('.')[0]
  return isinstance(error, OSError) or client in ('httpx', 'httpx2')
