"""Serves PRMs as a Ray Serve application, for those who have Ray.

    pip install 'ray[serve]' -e '.[serve]'
    serve run --app-dir deploy ray_serve:app prm=/tmp/prm_math replicas=2

Arguments are flags of `python -m prm_jax.serve`, and `replicas`, `cpus` and
`gpus`, which each replica gets. A replica owns its devices and its cache.
"""

from collections.abc import Mapping

from ray import serve
from starlette.applications import Starlette


def app(arguments: Mapping[str, str]) -> serve.Application:
  """Makes the application of `serve run`."""
  left = dict(arguments)
  replicas = int(left.pop('replicas', 1))
  resources = {
    'num_cpus': float(left.pop('cpus', 1)),
    'num_gpus': float(left.pop('gpus', 0)),
  }
  flags = [f'--{name}={value}' for name, value in left.items()]

  def build() -> Starlette:
    # On the replica: what JAX opens stays in its process.
    from prm_jax.main import prepare_jax
    from prm_jax.serve.__main__ import make_parser, open_server

    prepare_jax(0)
    return open_server(make_parser().parse_args(flags)).app()

  replica = serve.ingress(build)()
  deployment = serve.deployment(
    replica,
    name='prm',
    num_replicas=replicas,
    max_ongoing_requests=512,  # the server itself refuses what is too much
    ray_actor_options=resources,
  )
  return deployment.bind()
