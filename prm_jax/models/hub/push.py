"""Uploads a folder of a model to the Hugging Face Hub."""

import pathlib

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from prm_jax.models.hub.network import is_network_error
from prm_jax.runtime.errors import UserError

TOKEN = 'HF_TOKEN'


def check(repository: str) -> None:
  """Raises UserError unless there is a name and a token to push with."""
  try:
    validate_repo_id(repository)
    named = repository.count('/') == 1
  except HFValidationError:
    named = False
  if not named:
    raise UserError(f'--push={repository!r}: expected OWNER/NAME')
  if not huggingface_hub.get_token():
    raise UserError(
      f'--push={repository!r}: there is no token; set {TOKEN} to one that may '
      'write there'
    )


def push(folder: pathlib.Path, repository: str, private: bool = False) -> str:
  """Uploads all files of a folder in one commit; returns the page's address.

  The repository is made if it does not exist. huggingface_hub finds the token
  and the server: HF_TOKEN, or what its login stored, and HF_ENDPOINT.

  Args:
    repository: 'OWNER/NAME'.
    private: whether a repository that is made is hidden from others.

  Raises:
    UserError: the server refuses or cannot be reached.
  """
  api = huggingface_hub.HfApi()
  again = f'`hf upload {repository} {folder}` sends what was exported'
  try:
    api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(
      repo_id=repository,
      folder_path=folder,
      commit_message='Exported by prm_jax',
    )
  except HfHubHTTPError as error:
    refused = error.response.status_code in (401, 403)
    cure = f'set {TOKEN} to a token that may write there; then ' * refused
    raise UserError(
      f'--push={repository!r}: {api.endpoint} says: {_line(error)}; '
      f'{cure}{again}'
    ) from None
  except Exception as error:
    if not is_network_error(error):
      raise
    raise UserError(
      f'--push={repository!r}: {api.endpoint} cannot be reached '
      f'({_line(error)}); {again}'
    ) from None
  return f'{api.endpoint}/{repository}'


def _line(error: BaseException) -> str:
  return ' '.join(str(error).split())[:300]
