"""Uploads a folder of a model to the Hugging Face Hub."""

import pathlib

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from prm_jax.runtime.errors import UserError

TOKEN = 'HF_TOKEN'


def push(folder: pathlib.Path, repository: str, private: bool = False) -> str:
  """Uploads all files of a folder in one commit; returns the page's address.

  The repository is made if it does not exist. huggingface_hub finds the token
  and the server: HF_TOKEN, or what its login stored, and HF_ENDPOINT.

  Args:
    repository: 'OWNER/NAME'.
    private: whether a repository that is made is hidden from others.

  Raises:
    UserError: the name is wrong, or the server refuses or cannot be reached.
  """
  api = huggingface_hub.HfApi()
  try:
    api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(
      repo_id=repository,
      folder_path=folder,
      commit_message='Exported by prm_jax',
    )
  except HFValidationError as error:
    raise UserError(
      f'--push={repository!r}: {_line(error)}; expected OWNER/NAME'
    ) from None
  except HfHubHTTPError as error:
    raise UserError(
      f'--push={repository!r}: {api.endpoint} says: {_line(error)}; set '
      f'{TOKEN} to a token that may write there'
    ) from None
  except OSError as error:
    raise UserError(
      f'--push={repository!r}: {api.endpoint} cannot be reached '
      f'({_line(error)}); {folder} has all files, and the same command with a '
      'new --to tries again'
    ) from None
  return f'{api.endpoint}/{repository}'


def _line(error: BaseException) -> str:
  return ' '.join(str(error).split())[:300]
