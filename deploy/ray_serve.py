"""Serves PRMs as a Ray Serve application, for those who have Ray.

    pip install 'ray[serve]' -e '.[serve]'
    serve run --app-dir deploy ray_serve:app prm=/tmp/prm_math replicas=2

Arguments are flags of `python -m prm_jax.serve` (those without a value take
`true`; several PRMs are separated by commas), and `replicas`, `cpus` and
`gpus`, which each replica gets. A replica owns its devices and its cache.
"""

from collections.abc import Mapping

from ray import serve
from starlette.applications import Starlette

from prm_jax.main import prepare_jax
from prm_jax.serve.__main__ import open_server
from prm_jax.serve.flags import make_parser


def app(arguments: Mapping[str, str]) -> serve.Application:
  """Makes the application of `serve run`."""
  left = dict(arguments)
  replicas = int(left.pop('replicas', 1))
  resources = {
    'num_cpus': float(left.pop('cpus', 1)),
    'num_gpus': float(left.pop('gpus', 0)),
  }
  flags = [f'--prm={prm}' for prm in left.pop('prm', '').split(',')]
  flags += [
    f'--{name}' if value == 'true' else f'--{name}={value}'
    for name, value in left.items()
  ]

  def build() -> Starlette:
    prepare_jax(0)  # on the replica, whose process opens the devices
    return open_server(make_parser().parse_args(flags)).app()

  deployment = serve.deployment(
    serve.ingress(build)(),
    name='prm',
    num_replicas=replicas,
    max_ongoing_requests=512,  # the server itself refuses what is too much
    ray_actor_options=resources,
  )
  return deployment.bind()
