"""Label the steps of chains without human annotators.

    python -m prm_jax.main --config configs/label_math.py:verifier \
      --workdir /tmp/labels

Chains go in, and the same chains with step labels come out in WORKDIR/data;
WORKDIR/ledger.json says what they cost. The same command resumes an interrupted
job and tries again what failed for want of answers. A chain that was labelled
without some of its answers stays as it is and is counted. A resumed job may
have another `concurrent`, `price` or server.

Train on the labels with

    python -m prm_jax.main --config configs/prm_math.py \
      --config.data.labels=/tmp/labels --workdir /tmp/prm_on_labels

and with the flags that suit the source:

    verifier, judge, corruption
                no flags: labels are 0 or 1; steps after the first 0 are masked
    rollouts    labels are success rates; choose one of
                hard labels: --config.targets.hard_above=0.0 (any rollout
                succeeded) or 0.5;
                soft labels: no flags if chains are ranked by their lowest step
                score, --config.targets.after_first_error=keep if by the last;
                beta-binomial likelihood of the counts:
                --config.targets.after_first_error=keep
                --config.loss.name=beta_binomial --config.head.kind=two_class
                --config.orm_baseline=False (outcomes have no counts)
    omega       --config.targets.hard_above=T with T = omega.threshold
    consensus   the flags of the source whose labels are kept, with
                targets.hard_above = consensus.hard_above

By default the chains are the 8,192 training chains of configs/prm_math.py.
Each of these takes half a minute or less on two cores: verifier labels all;
rollouts all, with 262,144 completions of the solver that wrote them; omega
7,663 with 84,624 completions, as the others are too hard for it; corruption
3,417, the right ones; consensus keeps 72% of what rollouts and verifier
labelled. Other chains: those of a sampling (configs/sample_math.py) or
labelling job with --config.chains.kind=workdir --config.chains.workdir=WORKDIR,
or files of any format that can be read with --config.chains.kind=files.

Variants, comma separated, as in `configs/label_math.py:rollouts,tiny`:

    verifier    the domain's own check of a step; an exact calculator, for other
                text; unit tests, for other code
    rollouts    Math-Shepherd: how often a policy ends right from each step
    omega       OmegaPRM: the first error by binary search with rollouts
    judge       a language model names the first wrong step; needs a server:
                --config.policy.endpoint.base_url and .model; WORKDIR/replies
                keeps its answers, and WORKDIR/usage counts them
    corruption  right chains, an error planted in half of them
    consensus   no new labels: the chains of chains.workdir whose labels agree
                with those of the labelling job agrees_with
    active      the most convincing wrong answers of chains.workdir, a sampling
                job, by the PRM in prm.path; labelled by the verifier, or by the
                source of a variant before it
    small       a minute or two, of arithmetic; its test problems are those of
                every other config's `small`
    tiny        a few chains: to see that everything runs

For models of published size, with --config.policy.workdir; before there is such
a policy, python -m prm_jax.aot says what the job needs:

    qwen2_5_math_7b  on the four chips of a TPU v5e host
    qwen2_5_72b      on the four chips of a TPU v5p host
"""

import ml_collections

from configs import common


def base() -> ml_collections.ConfigDict:
  # Labelling a chain is quick: many in flight keep a policy busy.
  return common.base('label', name='Labels', concurrent=512)


def use_source(config: ml_collections.ConfigDict, source: str) -> None:
  if config.select:
    raise ValueError(
      f'{source} follows {config.select}: a source comes before active, as in '
      ':rollouts,active, and consensus has none'
    )
  config.update(name=f'Labels by {source}', source=source)


def judge(config: ml_collections.ConfigDict) -> None:
  use_source(config, 'judge')
  config.policy.kind = 'endpoint'


def use_selection(config: ml_collections.ConfigDict, select: str) -> None:
  if config.select:
    raise ValueError(
      f'{select} follows {config.select}: only one variant selects chains'
    )
  config.chains.kind = 'workdir'
  config.select = select


def consensus(config: ml_collections.ConfigDict) -> None:
  use_selection(config, 'consensus')
  if config.source != base().source:
    raise ValueError(
      f'consensus follows {config.source}: it keeps labels and makes none'
    )
  config.update(name='Labels that agree', source='given')


def active(config: ml_collections.ConfigDict) -> None:
  use_selection(config, 'active')
  config.name += ' of the most convincing wrong answers'


def small(config: ml_collections.ConfigDict) -> None:
  common.check_drawn(config, 'leave it out')
  config.name += ' (small)'
  config.chains.update(train_problems=2048, test_problems=100)


def tiny(config: ml_collections.ConfigDict) -> None:
  config.name += ' (tiny)'
  common.tiny_aot(config)
  config.chains.update(train_problems=128, dev_problems=8, test_problems=8)
  config.rollouts.samples = 2
  config.omega.samples = 2


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config with the variants in `arg` applied in order."""
  variants = {
    'verifier': lambda config: use_source(config, 'verifier'),
    'rollouts': lambda config: use_source(config, 'rollouts'),
    'omega': lambda config: use_source(config, 'omega'),
    'judge': judge,
    'corruption': lambda config: use_source(config, 'corruption'),
    'consensus': consensus,
    'active': active,
    'small': small,
    'tiny': tiny,
    'qwen2_5_math_7b': common.opened('qwen2_5_math_7b'),
    'qwen2_5_72b': common.opened('qwen2_5_72b'),
  }
  return common.apply('configs/label_math.py', base(), variants, arg)
