"""The `--config` flag, and one clear line for what a person can mistype.

`prm_jax.main` runs the job that a config describes, `prm_jax.aot` compiles it.
"""

from absl import flags
from ml_collections import config_flags

from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError

CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'The job: a file of configs/, FILE.py or FILE.py:VARIANTS.'
)


def log(text: str) -> None:
  """Process 0 talks for all."""
  if processes.is_first():
    print(text, flush=True)


def parse_flags(argv: list[str]) -> list[str]:
  """absl's parser, with one clear line for what a person can mistype."""
  try:
    rest = flags.FLAGS(argv)
    # A file that cannot be read raises when it is first looked into.
    _ = 'task' in (CONFIG.value or ())
    return rest
  except flags.Error as error:
    # A config that raises is quoted with its traceback; the last line is it.
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
    if isinstance(text, KeyError):  # a misspelt name comes wrapped
      text = text.args[0]
    raise UserError(
      f'config: {" ".join(str(text).split())}; see the config file for what '
      'can be set'
    ) from None
