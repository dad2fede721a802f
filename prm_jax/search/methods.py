"""The methods of search by name: what `config.method` can be."""

from prm_jax.search.beam import (
  BeamConfig,
  DvtsConfig,
  LookaheadConfig,
  beam,
  dvts,
  lookahead,
)
from prm_jax.search.best_of_n import BestOfNConfig, best_of_n
from prm_jax.search.early_rejection import EarlyRejectionConfig, early_rejection
from prm_jax.search.mcts import MctsConfig, best_end, mcts
from prm_jax.search.method import Method, best
from prm_jax.search.rebase import RebaseConfig, rebase
from prm_jax.search.refine import RefineConfig, refine
from prm_jax.search.vote import majority, weighted_vote

METHODS = {
  'best_of_n': Method(best_of_n, best, True, BestOfNConfig),
  'majority': Method(best_of_n, majority, False, BestOfNConfig),
  'weighted_vote': Method(best_of_n, weighted_vote, True, BestOfNConfig),
  'beam': Method(beam, best, True, BeamConfig),
  'dvts': Method(dvts, best, True, DvtsConfig),
  'lookahead': Method(lookahead, best, True, LookaheadConfig),
  'rebase': Method(rebase, best, True, RebaseConfig),
  'mcts': Method(mcts, best_end, True, MctsConfig),
  'refine': Method(refine, best, True, RefineConfig),
  'early_rejection': Method(early_rejection, best, True, EarlyRejectionConfig),
}
