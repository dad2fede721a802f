"""Defines the `--config` flag and parses command lines.

`prm_jax.main` runs the job that a config describes; `prm_jax.aot` compiles it.
"""

from absl import flags
from ml_collections import config_flags

from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError

CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'The job: a file of configs/, FILE.py or FILE.py:VARIANTS.'
)


def log(text: str) -> None:
  """Prints a line, on the first process only."""
  if processes.is_first():
    print(text, flush=True)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses flags and loads the config.

  Returns:
    The arguments that are no flags.

  Raises:
    UserError: names the flag or the config's key that is wrong, in one line.
  """
  try:
    rest = flags.FLAGS(argv)
    # A config file is loaded, and may raise, at the first access to its value.
    _ = 'task' in (CONFIG.value or ())
    return rest
  except flags.Error as error:
    # absl quotes the traceback of a config that raises; its last line is the
    # error.
    what, _, why = str(error).partition('Error whilst parsing config file:')
    why = why.strip().rpartition('\n')[2]
    raise UserError(f'{" ".join(f"{what}{why}".split())}; see --help') from None
  except OSError as error:
    why = str(error).rpartition('failure to load: ')[2].split('\n')[-1].strip()
    raise UserError(
      f'--config cannot be read: {why}; name one of configs/, as FILE.py or '
      'FILE.py:VARIANTS'
    ) from None
  except SyntaxError as error:
    place = f' {error.filename}:{error.lineno}' if error.filename else ''
    raise UserError(f'config{place}: {error.msg}; correct the file') from None
  except (AttributeError, LookupError, TypeError, ValueError) as error:
    text = error.args[0] if error.args else type(error).__name__
    if isinstance(text, KeyError):  # ml_collections wraps it
      text = text.args[0]
    raise UserError(
      f'config: {" ".join(str(text).split())}; see the config file for what '
      'can be set'
    ) from None
