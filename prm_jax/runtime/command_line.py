"""Parses `--config` and reports mistyped flags and values in one clear line.

`prm_jax.main` runs the job that a config describes, `prm_jax.aot` compiles it.
"""

import difflib
import os
import pathlib
import re
import sys
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError

HELP = 'The job: a file of configs/, FILE.py or FILE.py:VARIANTS.'
CONFIG = config_flags.DEFINE_config_file('config', None, HELP)
CONFIG_FLAG = re.compile(r'--?config(=|$)')
TYPES = {
  bool: 'True or False',
  float: 'a number',
  int: 'a whole number',
  tuple: "a list, such as '(1, 2)'",
  ml_collections.ConfigDict: 'a value of this section, by its own name',
}
OVERRIDE = re.compile(r'--?(?:no)?config\.([^=]+)(?:=(.*))?$', re.DOTALL)


def log(text: str) -> None:
  """Prints a line, in process 0 only.

  Raises:
    UserError: nobody reads the output, as of `... | head`.
  """
  if not processes.is_first():
    return
  try:
    print(text, flush=True)
  except BrokenPipeError:
    # Python writes what is left when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise UserError(
      'nobody reads what this command prints any more, so it ended; the same '
      'command goes on'
    ) from None


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the flags and returns the remaining arguments.

  Raises:
    UserError: a line for every override that is wrong, or one for the config
      file or another flag.
  """
  _make_configs_importable(argv)
  try:
    rest = flags.FLAGS(argv)
    # A file that cannot be read raises when it is first looked into.
    given = CONFIG.value
    _ = 'task' in (given or ())
  except Exception as error:
    lines = _faults_of_overrides(argv) or [_line(error)]
    raise UserError('\n'.join(lines)) from None
  if CONFIG.present and not isinstance(given, ml_collections.ConfigDict):
    raise UserError(
      '--config: get_config of the file returned a '
      f'{type(given).__name__}; expected a ConfigDict: end it with '
      'return config.lock()'
    )
  return rest


def _make_configs_importable(argv: list[str]) -> None:
  """Lets a config file import `configs.common`, wherever the command runs.

  That is looked for beside the config file's folder, and in the checkout of
  this package.
  """
  folders = []
  for i, arg in enumerate(argv):
    if CONFIG_FLAG.match(arg):
      name = arg.partition('=')[2] or (argv[i + 1 : i + 2] or [''])[0]
      path = pathlib.Path(name.partition(':')[0])
      folders.append(path.resolve().parent.parent)
  folders.append(pathlib.Path(__file__).resolve().parents[2])
  for folder in folders:
    if (folder / 'configs' / 'common.py').is_file():
      sys.path.append(str(folder))


def _faults_of_overrides(argv: list[str]) -> list[str]:
  """Returns a line for each `--config.NAME=VALUE` that is wrong.

  Each is tried alone, as absl stops at the first fault.
  """
  at = next((i for i, arg in enumerate(argv) if CONFIG_FLAG.match(arg)), None)
  if at is None:
    return []
  given = [argv[0], *argv[at : at + 1 + ('=' not in argv[at])]]
  try:
    config = _load(given)
  except Exception:
    return []  # the config file itself is at fault
  lines = []
  for i, arg in enumerate(argv):
    if not (match := OVERRIDE.match(arg)):
      continue
    name, value = match.groups()
    own = [arg]
    if value is None:  # the value may stand alone behind its name
      own += [x for x in argv[i + 1 : i + 2] if not x.startswith('-')]
      value = ' '.join(own[1:])
    try:
      _load([*given, *own])
    except Exception:
      lines.append(f'config.{name}={value!r}: {_expected(config, name)}')
  return lines


def _load(argv: list[str]) -> ml_collections.ConfigDict:
  """Returns the config that these arguments give, ignoring other flags."""
  values = flags.FlagValues()
  holder = config_flags.DEFINE_config_file(
    'config', None, HELP, flag_values=values, sys_argv=argv
  )
  values(argv)
  return holder.value


def _expected(config: ml_collections.ConfigDict, name: str) -> str:
  """Returns what was expected of an override with a dotted name."""
  here: Any = config
  for part in name.split('.'):
    if not isinstance(here, ml_collections.ConfigDict) or part not in here:
      names = here if isinstance(here, ml_collections.ConfigDict) else ()
      near = difflib.get_close_matches(part, names, 1)
      known = f'did you mean {near[0]}?' if near else 'see the config file'
      return f'there is no {part!r} there; {known}'
    kind, here = here.get_type(part), here[part]
  return f'expected {TYPES.get(kind, "another type")}'


def _line(error: Exception) -> str:
  """Returns the line for any other mistake in the flags."""
  if isinstance(error, flags.Error):
    # A config that raises is quoted with its traceback; the last line is it.
    what, _, why = str(error).partition('Error whilst parsing config file:')
    why = why.strip().rpartition('\n')[2]
    return f'{" ".join(f"{what}{why}".split())}; see --help'
  if isinstance(error, OSError):
    why = str(error).rpartition('failure to load: ')[2].split('\n')[-1].strip()
    return (
      f'--config cannot be read: {why}; name one of configs/, as FILE.py or '
      'FILE.py:VARIANTS'
    )
  if isinstance(error, ImportError):
    return (
      f'config: {error}; run the command in the folder that holds configs/, or '
      'put that folder into PYTHONPATH'
    )
  if isinstance(error, SyntaxError):
    place = f' {error.filename}:{error.lineno}' if error.filename else ''
    return f'config{place}: {error.msg}; correct the file'
  if isinstance(error, AttributeError | LookupError | TypeError | ValueError):
    text = error.args[0] if error.args else type(error).__name__
    if isinstance(text, KeyError):  # a misspelt name comes wrapped
      text = text.args[0]
    return (
      f'config: {" ".join(str(text).split())}; see the config file for what '
      'can be set'
    )
  raise error
