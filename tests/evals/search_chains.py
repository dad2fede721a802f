"""Makes chosen chains in the form that a search job writes."""

from prm_jax.data.chains import Chain

LEDGER = {
  'samples': 4,
  'tokens': 100,
  'prompt_tokens': 10,
  'scored_tokens': 60,
  'policy_flops': 3e6,
  'prm_flops': 1e6,
  'rounds': 2,
  'lost': 0,
  'dead': {},
  'stopped': '',
  'seconds': 0.5,
}


def chosen(name, right=True, scores=(0.9, 0.8), ended=True, **ledger):
  known = [score for score in scores if score is not None]
  return Chain(
    f'What is {name}?',
    tuple(f'step {i}' for i in range(len(scores))),
    answer='7' if ended else None,
    outcome=None if right is None else bool(right),
    meta={
      'id': f'{name} # 0',
      'problem_id': str(name),
      'truth': '' if right is None else '7',
      'search': {
        'node': len(scores),
        'ended': ended,
        'scores': list(scores),
        'chain_score': min(known) if known else None,
        'ledger': LEDGER | ledger,
      },
    },
  )
