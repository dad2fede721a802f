"""TRL's GRPOTrainer on the task of rl.py, in its own process.

Reads a JSON task and prints one line of JSON: tokens and where time went, or
when 90% of held-out chains were right.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time

import datasets
import tokenizers
import torch
import transformers
import trl

from experiments.speed.race import Race

SPECIALS = ('<pad>', '<bos>', '\n', '<problem_end>')  # ids 0 to 3, as ours
END = 3
WORDS = ('+', '-', '*', '=', 'mod', ':', *map(str, range(100)))


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
  """Makes prm_jax's tokenizer of the arithmetic domain, with a step a line."""
  ids = {word: i for i, word in enumerate((*SPECIALS, *WORDS))}
  backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids))
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(' ', 'removed')
  pad, first, _, end = SPECIALS
  backend.post_processor = tokenizers.processors.TemplateProcessing(
    single=f'{first} $A {end}',
    special_tokens=[(first, ids[first]), (end, ids[end])],
  )
  # The end of a step is text: special tokens are not decoded.
  backend.add_special_tokens([pad, first, end])
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token=pad, eos_token=end
  )


def synchronize() -> None:
  """Waits for the GPU, if there is one in use."""
  if torch.cuda.is_initialized():
    torch.cuda.synchronize()


class Timed(trl.GRPOTrainer):
  """The trainer, which notes each update's tokens and wall time by part.

  Attributes:
    tokens: tokens that the policy wrote, for each update.
    seconds: wall time of each part, for each update.
    right: share of right chains, for each update.
  """

  def __init__(self, *args, right, **kwargs):
    super().__init__(*args, **kwargs)
    self.tokens, self.seconds = [], {'sampling': [], 'scoring': []}
    self.right = right

  @contextlib.contextmanager
  def _clock(self, part):
    synchronize()
    began = time.perf_counter()
    yield
    synchronize()
    self.seconds[part].append(time.perf_counter() - began)

  def _generate(self, prompts):
    with self._clock('sampling'):
      made = super()._generate(prompts)
    self.tokens.append(sum(map(len, made[1])))
    return made

  def _calculate_rewards(self, *args):
    with self._clock('scoring'):
      return super()._calculate_rewards(*args)

  def held_out_accuracy(self, problems: list[dict], samples: int) -> float:
    """Samples chains of problems as in training; returns the share of right.

    Args:
      samples: chains of each problem.
    """
    asked = [problem for problem in problems for _ in range(samples)]
    self.model.eval()
    made = super()._generate([problem['prompt'] for problem in asked])
    self.model.train()
    answers = [problem['truth'] for problem in asked]
    graded = grade(made[3], made[1], answers)
    return sum(graded) / len(graded)


class Marks(transformers.TrainerCallback):
  """Notes the wall clock and the CPU clock after each update."""

  def __init__(self):
    self.wall, self.cpu = [], []

  def on_step_end(self, args, state, control, **kwargs):
    synchronize()
    self.wall.append(time.perf_counter())
    self.cpu.append(time.process_time())


def grade(
  completions: list[str], completion_ids: list[list[int]], truths: list
) -> list[float]:
  """Returns 1.0 for each chain that ends with the right answer, else 0.0."""
  return [
    float(ids[-1] == END and text.rstrip().endswith(f'= {truth}'))
    for text, ids, truth in zip(
      completions, completion_ids, truths, strict=True
    )
  ]


def make_rewards(prm: str) -> tuple[list, list[float]]:
  """Makes the reward functions.

  Args:
    prm: workdir of a PRM, which pays a chain its lowest score; '': none.

  Returns:
    The functions, and a list that gets the share of right chains of each
    update.
  """
  shares = []

  def right(completions, completion_ids, truth, **_):
    paid = grade(completions, completion_ids, truth)
    shares.append(sum(paid) / len(paid))
    return paid

  if not prm:
    return [right], shares
  from prm_jax import rl  # noqa: PLC0415

  rewards = rl.reward_fn(prm)

  def lowest(prompts, completions, **_):
    pairs = zip(prompts, completions, strict=True)
    return [min(r, default=0.0) for r in rewards(pairs)]

  return [right, lowest], shares


def make_trainer(task: dict, folder: str, device: str, **options) -> Timed:
  """Makes TRL's trainer with the algorithm and the sizes of our config.

  Args:
    folder: folder for what the trainer writes.
    device: 'cpu' or 'cuda'.
    options: arguments of its GRPOConfig, to sample in another way.
  """
  train, optim, loss = (task['config'][k] for k in ('train', 'optim', 'loss'))
  rewards, right = make_rewards(task['prm'])
  chains = train['problems'] * train['samples']
  return Timed(
    task['policy'],
    rewards,
    trl.GRPOConfig(
      folder,
      model_init_kwargs={'dtype': 'float32', 'attn_implementation': 'sdpa'},
      bf16=False,
      # As JAX computes float32 products on a GPU by default.
      tf32=True if device == 'cuda' else None,
      use_cpu=device == 'cpu',
      gradient_checkpointing=False,
      optim='adamw_torch_fused',
      max_steps=train['updates'],
      # One batch is sampled, and learned from, in one go.
      per_device_train_batch_size=chains,
      num_generations=train['samples'],
      max_completion_length=task['max_tokens'],
      shuffle_dataset=False,
      loss_type='dapo',
      epsilon=loss['clip_low'],
      beta=loss['kl_weight'],
      learning_rate=optim['lr'],
      lr_scheduler_type='constant_with_warmup',
      warmup_steps=optim['warmup'],
      adam_beta1=optim['b1'],
      adam_beta2=optim['b2'],
      weight_decay=optim['weight_decay'],
      max_grad_norm=optim['clip'],
      logging_steps=train['log_every'],
      save_strategy='no',
      report_to='none',
      disable_tqdm=True,
      **options,
    ),
    datasets.Dataset.from_dict(
      {'prompt': task['prompts'], 'truth': task['truths']}
    ),
    processing_class=make_tokenizer(),
    right=right,
  )


def run(task: dict, folder: str, device: str = 'cpu', **options) -> dict:
  """Trains, and returns what was measured after the warm-up.

  Args:
    folder, device, options: see `make_trainer`.
  """
  trainer = make_trainer(task, folder, device, **options)
  marks = Marks()
  trainer.add_callback(marks)
  with contextlib.redirect_stdout(sys.stderr):  # the trainer logs to stdout
    trainer.train()
  first = task['warmup']
  return {
    'tokens': sum(trainer.tokens[first:]),
    'wall': marks.wall[-1] - marks.wall[first - 1],
    'cpu': marks.cpu[-1] - marks.cpu[first - 1],
    'parts': {k: sum(v[first:]) for k, v in trainer.seconds.items()},
    'right': sum(trainer.right[first:]) / len(trainer.right[first:]),
    'parameters': sum(p.numel() for p in trainer.model.parameters()),
    'versions': {
      each.__name__: each.__version__ for each in (torch, transformers, trl)
    },
  }


class Looks(transformers.TrainerCallback):
  """Evaluates the policy as our side does, and ends training at the aim."""

  def __init__(self, trainer: Timed, task: dict, race: Race):
    self._trainer, self._race = trainer, race
    self._problems = task['held_out']
    config = task['config']
    self._samples = config['held_out']['samples']
    self._every = config['train']['evaluate_every']

  def _look(self, update: int) -> bool:
    synchronize()
    with self._race.look(update) as looked:
      looked.accuracy = self._trainer.held_out_accuracy(
        self._problems, self._samples
      )
      synchronize()
    return self._race.ended

  def on_train_begin(self, args, state, control, **kwargs):
    self._look(0)

  def on_step_end(self, args, state, control, **kwargs):
    update = state.global_step
    if update % self._every == 0 or update == args.max_steps:
      control.should_training_stop = self._look(update)


def race(
  task: dict, ends: float, folder: str, device: str = 'cpu', **options
) -> dict:
  """Measures the time until 90% of held-out chains are right.

  Args:
    ends: `time.monotonic` after which it gives up.
    folder, device, options: see `make_trainer`.
  """
  if task['prm']:
    from prm_jax import rl  # noqa: F401, PLC0415  # not within their time
  running = Race(ends)
  trainer = make_trainer(task, folder, device, **options)
  trainer.add_callback(Looks(trainer, task, running))
  with contextlib.redirect_stdout(sys.stderr):
    trainer.train()
  return running.found()


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--task', required=True)
  parser.add_argument('--threads', type=int, required=True)
  parser.add_argument(
    '--minutes', type=float, default=0.0, help='time for a race; 0: the rate'
  )
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  with open(args.task) as file:
    task = json.load(file)
  with tempfile.TemporaryDirectory() as folder:
    if args.minutes:
      found = race(task, time.monotonic() + 60 * args.minutes, folder)
    else:
      found = run(task, folder)
  print(json.dumps(found))


if __name__ == '__main__':
  main()
