"""Opens a PRM that writes critiques: the critic, and how it is asked.

settings -> Generator or Endpoint -> GenerativePrm
"""

import dataclasses

from jax.sharding import Mesh

from prm_jax.data.encoding import StepFormat, make_format
from prm_jax.inference import loading
from prm_jax.inference.generative_prm import GenerativePrm
from prm_jax.inference.generator import Generator
from prm_jax.inference.pretrained import Pretrained, open_pretrained
from prm_jax.inference.protocols import Critic
from prm_jax.inference.server.endpoint import Endpoint
from prm_jax.jobs.policies import PRM_USAGE
from prm_jax.jobs.settings.critics import GenerativeConfig
from prm_jax.models.decoding_params import take_over
from prm_jax.models.dtypes import fast_dtype
from prm_jax.models.hub.chat_template import cut, render_with
from prm_jax.models.hub.safetensors_files import HUB, resolve
from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import DELETE, Workdir

# Characters that no question has, in place of what differs between chains.
_MARKS = '\ue000\ue001'


def open_generative(
  config: GenerativeConfig, seed: int, mesh: Mesh, workdir: Workdir
) -> GenerativePrm:
  """Opens a copy of the critic in each process.

  Args:
    workdir: where the calls of a server are counted, and its answers kept.

  Raises:
    UserError: the critic is missing, or cannot write.
  """
  return GenerativePrm(_open_critic(config, seed, mesh, workdir), config)


def _open_critic(
  config: GenerativeConfig, seed: int, mesh: Mesh, workdir: Workdir
) -> Critic:
  if config.critic == 'workdir':
    check_style(config.path, config.style)
    return loading.load_policy(
      config.path, config.sampling, seed=seed, mesh=mesh, dtype=config.dtype
    )
  if config.critic == 'endpoint':
    return Endpoint(
      config.endpoint.to_config(seed),
      config.cache or workdir / 'critiques',
      workdir / PRM_USAGE / f'process-{processes.index()}.jsonl',
    )
  opened = open_pretrained(config.path)
  if config.max_length > opened.longest:
    raise UserError(
      f'prm.generative.max_length={config.max_length}: {config.path} reads at '
      f'most {opened.longest} tokens; lower it'
    )
  fmt = chat_format(opened, config)
  dtype = config.dtype or fast_dtype(mesh, 'float32') or 'float32'
  model = dataclasses.replace(opened.model, dtype=dtype, param_dtype=dtype)
  params = opened.load(mesh, dtype=dtype)
  return Generator(
    take_over(params, model, mesh, config.sampling.spread),
    model,
    fmt,
    mesh,
    config.sampling,
    seed,
    f'{config.path} {dtype} {fmt.fingerprint()}',
  )


def check_style(workdir: str, style: str) -> None:
  """Checks that a critic that was trained here learned a style.

  Raises:
    UserError: it learned another, or is no critic.
  """
  learned = learned_style(workdir)
  if not learned:
    raise UserError(
      f'{workdir} holds no critic; name the workdir of one that '
      'configs/verifier_math.py trained'
    )
  if learned != style:
    raise UserError(
      f'{workdir} learned critiques in the style {learned}, and is asked for '
      f'{style}; name its style, or another workdir'
    )


def learned_style(workdir: str) -> str:
  """Returns the style of the critiques that a run learned; '' if none."""
  path = paths.open_path(workdir) / 'config.json'
  trained = paths.read_json(path, DELETE) if path.is_file() else {}
  section = trained.get('data') or trained.get('problems') or {}
  return section.get('critiques', {}).get('style', '')


def chat_format(opened: Pretrained, config: GenerativeConfig) -> StepFormat:
  """Returns the format in which a language model is asked and answers.

  The question is the user's turn of its chat template; the lines of a critique
  are the assistant's. A model without a template goes on from the question.
  """
  fmt = make_format(
    opened.tokenizer, config.max_length, config.separator, config.end
  )
  template = opened.read_chat_template()
  if not template:
    return fmt
  is_hub = config.path.startswith(HUB)
  where = resolve(config.path) if is_hub else paths.open_path(config.path)
  turns = [('user', _MARKS[0]), ('assistant', _MARKS[1])]
  before, between, _ = cut(render_with(template, where)(turns), _MARKS, where)
  encode, first = opened.tokenizer.encode_template, opened.tokenizer.first_ids
  prefix = tuple(encode(before))
  # The template of a .gguf file has no name for the token that begins a text.
  prefix = prefix if prefix[: len(first)] == first else first + prefix
  # Only the template has special tokens: what a question quotes is plain text.
  return dataclasses.replace(
    fmt, prompt_prefix=prefix, prompt_suffix=tuple(encode(between))
  )
