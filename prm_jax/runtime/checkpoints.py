"""Saves and restores checkpoints; the only file that imports Orbax.

    training loop -> save -> workdir/checkpoints -> restore -> training loop
                                                 -> load_params -> scoring

A checkpoint holds `params` (all that scoring loads), `rest` (the optimizer and
the counters), `data` (the position of the input iterator) and `seal` (to detect
damage, `seals.py`). If a PRM learns beside a policy, it also holds
`prm`, the PRM's whole state. Saves run in the background and become visible by
one rename, so a process that is killed leaves the previous checkpoint intact.
"""

import contextlib
import logging
import math
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from prm_jax.runtime import paths, processes, seals
from prm_jax.runtime.array_reader import CHUNK, read_arrays
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.finite import NOT_FINITE, first_not_finite
from prm_jax.runtime.sharding import path_name

# At INFO Orbax logs every stage of every save.
absl_logging.set_verbosity(absl_logging.ERROR)
# A failed restore raises one error; asyncio would log it again for every array.
logging.getLogger('asyncio').addFilter(
  lambda record: 'coro=<async_deserialize()' not in record.getMessage()
)
# Files in which Orbax logs that a save failed. The next save raises that error,
# so it need not be logged, too.
RAISED_AGAIN = ('future.py', 'async_checkpointer.py', 'checkpoint_manager.py')
absl_logging.get_absl_logger().addFilter(
  lambda record: not (record.exc_info and record.filename in RAISED_AGAIN)
)

NONE_YET = 'holds no checkpoint yet; train first'
# Arrays that are not asked for are not read.
PARTS = ocp.options.PyTreeOptions(
  loading=ocp.options.PyTreeOptions.Loading(partial_load=True)
)
# So that `array_reader` need not read an array at once.
IN_CHUNKS = ocp.options.ArrayOptions(
  saving=ocp.options.ArrayOptions.Saving(
    storage_options=ocp.options.ArrayOptions.Saving.StorageOptions(
      chunk_byte_size=CHUNK
    )
  )
)


class Checkpoints:
  """Saves and loads the checkpoints of one run.

  Args:
    directory: the checkpoints' folder; made if absent.
    keep: how many of the latest checkpoints to keep.
    best: name of a metric, higher is better, whose best checkpoint is also
      kept; '' for none.
    writes: False only reads, beside a run that may be saving at this moment.

  Raises:
    UserError: the folder cannot be written or read.
  """

  def __init__(
    self, directory: paths.Path, keep: int, best: str, writes: bool = True
  ) -> None:
    policies = ocp.training.preservation_policies
    preserve = [policies.LatestN(keep)]
    if best:
      preserve.append(
        policies.BestN(
          get_metric_fn=lambda metrics: metrics[best],
          n=1,
          keep_checkpoints_without_metrics=False,
        )
      )
    self._best = best
    self._directory = directory
    self._saving: Any = None  # Orbax's answer to the last save
    remote = paths.is_remote(directory)
    try:
      self._checkpointer = ocp.training.Checkpointer(
        # `absolute` would turn a gs:// path into one of the local disk.
        directory if remote else directory.absolute(),
        preservation_policy=policies.AnyPreservationPolicy(preserve),
        cleanup_tmp_directories=writes,
      )
    except Exception as error:
      if processes.is_loss(error):
        raise
      # At gs:// Google's libraries raise many kinds of errors.
      if not remote and not isinstance(error, OSError | ValueError):
        raise
      raise UserError(
        f'cannot open checkpoints in {directory} ({_reason(error)}); make it '
        'writable, or delete the checkpoint that is damaged'
      ) from error

  @property
  def latest(self) -> int | None:
    """Returns the last saved step; None if there is none."""
    checkpoint = self._checkpointer.latest
    return None if checkpoint is None else checkpoint.step

  @property
  def best(self) -> int | None:
    """Returns the saved step with the highest metric; else the latest."""
    rated = [
      (c.metrics[self._best], c.step)
      for c in self._checkpointer.checkpoints
      if self._best and c.metrics
    ]
    return max(rated)[1] if rated else self.latest

  def save(
    self,
    step: int,
    state: Any,
    data: Any,
    metrics: dict[str, float],
    prm: Any = None,
  ) -> None:
    """Starts to save a TrainState and the input's position; does not wait.

    Args:
      data: the input iterator; None for a model that is not trained further.
      prm: the TrainState of a PRM that learns beside the policy.

    Raises:
      UserError: the disk is full or read-only; may report the previous save.
    """
    rest = _without_key(state)
    params = rest.pop('params')
    trees = {'params': params, 'rest': rest}
    if prm is not None:
      trees['prm'] = _without_key(prm)
    # The best metric is missing if the dev chains have only one class.
    rated = metrics if _is_rated(metrics, self._best) else None
    seal = seals.Seal(trees, data is not None, rated)
    beside = {seals.FOLDER: seal} | ({} if data is None else {'data': data})
    self._end_save()
    with paths.writing(self._directory), ocp.Context(array_options=IN_CHUNKS):
      self._saving = self._checkpointer.save_checkpointables_async(
        step, trees | beside, metrics=rated, force=True
      )

  def restore(self, abstract_state: Any, data: Any) -> Any:
    """Returns the latest TrainState, sharded as `abstract_state`.

    Args:
      data: the input iterator; it continues from the saved position.
    """
    rest = _abstract_without_key(abstract_state)
    params = rest.pop('params')
    loaded = self._load(
      self.latest, {'params': params, 'rest': rest, 'data': data}
    )
    return _with_key(
      type(abstract_state), loaded['rest'] | {'params': loaded['params']}
    )

  def restore_prm(self, abstract_state: Any) -> Any:
    """Returns the latest TrainState of the PRM beside the policy."""
    abstract = {'prm': _abstract_without_key(abstract_state)}
    loaded = self._load(self.latest, abstract)
    return _with_key(type(abstract_state), loaded['prm'])

  def load_params(self, abstract_params: Any, step: int) -> Any:
    """Returns the parameters of one checkpoint, sharded as `abstract_params`.

    Parameters that `abstract_params` lacks, such as the value head of a policy,
    are not read.

    Raises:
      UserError: the checkpoint is damaged, belongs to another model, or has
        values that are not finite.
    """
    folder = self._directory / str(step)
    with self._told(step):
      sums = seals.read_sums(folder, 'params')
      params = read_arrays(folder / 'params', abstract_params, sums)
    if bad := first_not_finite(params):
      path, layer = bad
      at = f', layer {layer}' if 'layers/' in path else ''
      raise UserError(
        f'checkpoint {folder}: {path!r}{at} {NOT_FINITE}'
        'delete that folder to use the one before it, or train again'
      )
    return params

  def _load(self, step: int | None, abstract: dict[str, Any]) -> dict[str, Any]:
    with self._told(step):
      return self._checkpointer.load_checkpointables(step, abstract)

  @contextlib.contextmanager
  def _told(self, step: int | None) -> Iterator[None]:
    """Raises UserError where a checkpoint cannot be restored."""
    try:
      yield
    except Exception as error:  # Orbax and TensorStore raise many kinds
      if processes.is_loss(error):
        raise  # another process is gone; the checkpoint is fine
      if isinstance(error, UserError):
        raise UserError(
          f'checkpoint {self._directory / str(step)}: {error}'
        ) from error
      steps = [checkpoint.step for checkpoint in self._checkpointer.checkpoints]
      if step is not None and step not in steps:
        these = ', '.join(map(str, steps))
        found = f'has no checkpoint of step {step}: expected one of {these}'
        raise UserError(
          f'{self._directory} {found if steps else NONE_YET}'
        ) from error
      raise UserError(
        f'checkpoint {self._directory / str(step)} cannot be restored: it is '
        'damaged or of another model; delete that folder to go on from the '
        f'one before it, or choose another workdir ({_reason(error)})'
      ) from error

  def _end_save(self) -> None:
    """Waits for the save under way, and raises why it failed.

    Its thread ends, and closes its files, when it is asked for its result.
    """
    with paths.writing(self._directory):
      saving, self._saving = self._saving, None
      if saving is not None:
        saving.result()

  def close(self) -> None:
    """Waits until all started saves are on disk."""
    self._end_save()
    with paths.writing(self._directory):
      self._checkpointer.close()


def read_shapes(
  directory: pathlib.Path, name: str
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes in a checkpoint that another program wrote, by path.

  Args:
    directory: the checkpoint's folder.
    name: of one tree in it.

  Raises:
    UserError: there is no such checkpoint, or it is damaged.
  """
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', DeprecationWarning)
      trees = ocp.checkpointables_metadata(directory.absolute()).metadata
    leaves = jax.tree_util.tree_leaves_with_path(trees[name])
  except Exception as error:  # Orbax and TensorStore raise many kinds
    raise _unreadable(directory / name, error) from error
  shapes = {
    path_name(path): tuple(leaf.shape)
    for path, leaf in leaves
    if hasattr(leaf, 'shape')
  }
  if not shapes:
    raise _unreadable(directory / name, ValueError('it holds no array'))
  return shapes


def load_tree(
  directory: pathlib.Path, name: str, abstract: dict[str, Any]
) -> dict[str, Any]:
  """Loads some arrays of a checkpoint that another program wrote.

  Args:
    directory, name: see `read_shapes`.
    abstract: tree of the shapes, types and shardings of these arrays.

  Raises:
    UserError: the checkpoint is damaged.
  """
  try:
    with ocp.Context(pytree_options=PARTS):
      found = ocp.load_checkpointables(directory.absolute(), {name: abstract})
  except Exception as error:
    if processes.is_loss(error):
      raise
    raise _unreadable(directory / name, error) from error
  return found[name]


def _unreadable(path: pathlib.Path, error: Exception) -> UserError:
  return UserError(
    f'{path} is no checkpoint of Orbax, or is damaged ({_reason(error)}); copy '
    'it again'
  )


def _is_rated(metrics: dict[str, float], best: str) -> bool:
  """Says whether a checkpoint can be compared: NaN is not better or worse."""
  return best in metrics and math.isfinite(metrics[best])


def _without_key(state: Any) -> dict[str, Any]:
  """Converts a TrainState to arrays that can be saved."""
  return state._asdict() | {'key': jax.random.key_data(state.key)}


def _abstract_without_key(state: Any) -> dict[str, Any]:
  """Does the same for a state of shapes without values."""
  data = jax.eval_shape(jax.random.key_data, state.key)
  key = jax.ShapeDtypeStruct(
    data.shape, data.dtype, sharding=state.key.sharding
  )
  return state._asdict() | {'key': key}


def _with_key(kind: type, saved: dict[str, Any]) -> Any:
  """Undoes `_without_key`."""
  return kind(**saved | {'key': jax.random.wrap_key_data(saved['key'])})


def _reason(error: BaseException) -> str:
  """Returns the first cause of an error of Orbax, in one line."""
  while error.__cause__ is not None:
    error = error.__cause__
  lines = str(error).strip().splitlines() or ['']
  return f'{type(error).__name__}: {lines[0][:200]}'
