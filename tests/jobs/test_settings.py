"""From a training job's config to its parts: what can be refused early is."""

import importlib.util

import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.jobs.settings.training import check_values
from prm_jax.jobs.training import check_counts
from prm_jax.runtime.errors import UserError
from prm_jax.training.objective import LossConfig
from tests.shared.command_line import ROOT

COUNTS = {
  'loss.name': 'beta_binomial',
  'head.kind': 'two_class',
  'orm_baseline': False,
}


def config_of(**values):
  """configs/prm_math.py with values by their dotted names."""
  spec = importlib.util.spec_from_file_location(
    'prm_math', ROOT / 'configs' / 'prm_math.py'
  )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = module.get_config('tiny')
  config.update_from_flattened_dict(values)
  return config.to_dict()


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (
      {'targets.hard_above': 0.0},
      r"loss.name='beta_binomial' with targets.hard_above=0.0: .* unset",
    ),
    (
      {'targets.after_first_error': 'bad'},
      "with targets.after_first_error='bad': .* to 'keep' or 'mask'",
    ),
    ({'targets.supervision': 'outcome'}, "with targets.supervision='outcome'"),
    ({'orm_baseline': True}, 'with orm_baseline=True: .* set orm_baseline to'),
  ],
)
def test_counts_that_nobody_counted_are_refused(values, message):
  """8 of 8 out of 4 of 8: hardened labels keep their number of trials."""
  with pytest.raises(UserError, match=message):
    check_values(config_of(**COUNTS | values))


@pytest.mark.parametrize('after', ['mask', 'keep'])
def test_counts_as_they_were_counted_are_taken(after):
  check_values(config_of(**COUNTS, **{'targets.after_first_error': after}))


def test_hard_labels_are_for_losses_without_counts():
  check_values(config_of(**{'targets.hard_above': 0.0}))


def test_a_loss_of_counts_wants_some():
  """Without counts no step would weigh anything, and nothing be learned."""
  right, half = StepLabel(1.0), StepLabel(0.5, 'rollout', 4, 8)
  plain = Chain('p', ('a',), labels=(right,))
  counted = Chain('p', ('a', 'b'), labels=(right, half))
  loss = LossConfig('beta_binomial')
  check_counts(loss, [plain, counted])
  with pytest.raises(UserError, match=r'none of the 1 chains has .* counts'):
    check_counts(loss, [plain])
  check_counts(LossConfig('bce'), [plain])
