"""The methods of search by name: what `config.method` can be."""

from prm_jax.search.beam import BeamConfig, beam
from prm_jax.search.best_of_n import BestOfNConfig, best_of_n
from prm_jax.search.searching import Method, best

METHODS = {
  'best_of_n': Method(best_of_n, best, True, BestOfNConfig),
  'beam': Method(beam, best, True, BeamConfig),
}
