"""A live server: scores, refusals, hostile clients, signals."""

import concurrent.futures
import itertools
import json
import os
import signal
import socket
import struct
import sys
import threading
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import prm_jax
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.server.config import PrmServerConfig
from prm_jax.inference.server.step_scores import RemotePrm
from prm_jax.models import prefix_store
from prm_jax.runtime.errors import UserError
from prm_jax.serve.__main__ import open_prm, open_prms
from prm_jax.serve.flags import make_parser, read_keys
from tests.serve.live_server import LiveServer
from tests.shared.published_models import write_model

pytestmark = pytest.mark.job

PROBLEM = 'mod 10 : 7 * 3 + 4'
STEPS = ['7 * 3 = 1', '1 + 4 = 5']
WRONG = ['7 * 3 = 1', '1 + 4 = 6']
# They take a second or more to encode and read.
MANY = [
  (f'mod 10 : {a} * {b} + {c}', [f'{a} * {b} = {d}', f'{d} + {c} = 1'])
  for a, b, c, d in itertools.product(range(8), repeat=4)
]
# PRM_JAX_CONNECTIONS=100000 takes a minute or two.
CONNECTIONS = int(os.environ.get('PRM_JAX_CONNECTIONS', '3000'))
HEADS = (
  b'',
  b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc',  # of TLS
  b'POST /v1/steps HTTP/1.1\r\nContent-Le',
  b'POST /v1/steps HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"chains": [',
)


@pytest.fixture(scope='module')
def server(finished):
  server = LiveServer(finished)
  yield server.wait()
  code, text = server.stop()
  assert code == 0, text
  assert 'Traceback' not in text


@pytest.fixture(scope='module')
def prm(finished):
  return prm_jax.load(finished)


def test_scores_are_those_of_the_prm(server, prm):
  status, reply = server.score((PROBLEM, STEPS), (PROBLEM, WRONG))
  assert status == 200
  wanted = prm.score_many([(PROBLEM, STEPS), (PROBLEM, WRONG)])
  for data, scores in zip(reply['data'], wanted, strict=True):
    np.testing.assert_allclose(data['scores'], scores, rtol=0, atol=1e-6)
    assert data['score'] == pytest.approx(scores.min(), abs=1e-6)


def test_a_chain_that_grew_costs_its_new_step(server, prm):
  problem = 'mod 10 : 8 * 3 + 4 - 1'
  steps = ['8 * 3 = 4', '4 + 4 = 8', '8 - 1 = 7']
  read = []
  for n in (1, 2, 3):
    status, reply = server.score((problem, steps[:n]))
    assert status == 200
    read.append(reply['usage']['tokens'])
  whole = len(prm.format.encode(problem, steps).tokens)
  assert sum(read) == whole
  assert read[1] == read[2] == len(prm.format.encode_step(steps[1], False))


def test_many_clients_at_a_time_get_their_own_scores(server, prm):
  rng = np.random.default_rng(0)

  def draw():
    a, b, c = (int(x) for x in rng.integers(0, 10, 3))
    return f'mod 10 : {a} * {b} + {c}', [f'{a} * {b} = {a * b % 10}']

  chains = [draw() for _ in range(200)]
  bodies = [{'chains': [{'problem': p, 'steps': s}]} for p, s in chains]
  replies = []
  for first in range(0, 200, 50):
    replies += server.at_once(bodies[first : first + 50])
  for (status, _, reply), wanted in zip(
    replies, prm.score_many(chains), strict=True
  ):
    assert status == 200
    np.testing.assert_allclose(
      reply['data'][0]['scores'], wanted, rtol=0, atol=1e-6
    )
  _, text = server.get('/metrics')
  numbers = text.decode()
  assert 'prm_jax_requests_total{path="/v1/steps",status="200"}' in numbers
  calls = float(
    numbers.split('prm_jax_call_requests_count{prm="prm"} ')[1].split()[0]
  )
  asked = float(
    numbers.split('prm_jax_call_requests_sum{prm="prm"} ')[1].split()[0]
  )
  assert asked > calls  # some calls answered several clients


def test_what_it_says_of_itself(server):
  assert server.get('/health') == (200, b'{"alive":true}')
  status, text = server.get('/v1/models')
  assert status == 200 and json.loads(text)['data'][0]['id'] == 'prm'
  status, text = server.get('/openapi.json')
  document = json.loads(text)
  assert document['openapi'].startswith('3.1')
  assert '/v1/steps' in document['paths'] and '/pooling' in document['paths']
  status, page = server.get('/')
  assert status == 200 and b'<option>prm</option>' in page
  url = f'http://127.0.0.1:{server.port}'
  reply = server.post('/get_worker_address', {'model': 'prm'})
  assert reply == (200, {'address': url})
  assert server.post('/get_worker_address', {'model': 'x'})[1]['address'] == ''


REFUSED = {
  'no JSON': ('/v1/steps', b'{', 400, 'the body is no JSON'),
  'NaN': ('/v1/steps', b'{"chains": NaN}', 400, 'NaN is no JSON'),
  'deep': ('/v1/steps', b'[' * 10**6, 400, 'the body is no JSON'),
  'not UTF-8': ('/v1/steps', b'{"a": "\xff"}', 400, 'the body is no JSON'),
  'a list': ('/v1/steps', b'[]', 400, 'body: Input should be'),
  'no body': ('/v1/steps', b'', 400, 'the body is no JSON'),
  'a word': (
    '/v1/steps',
    json.dumps({'chains': [{'problem': 'x', 'steps': ['y']}]}).encode(),
    400,
    "'x' is not a word",
  ),
  'NUL': (
    '/v1/steps',
    json.dumps({'chains': [{'problem': '\0', 'steps': ['1']}]}).encode(),
    400,
    'is not a word',
  ),
  'half a pair': (
    '/v1/steps',
    b'{"chains": [{"problem": "\\ud800", "steps": ["1"]}]}',
    400,
    'chains[0].problem: Input should be a valid string',
  ),
  'a huge number': (
    '/v1/steps',
    b'{"chains": ' + b'9' * 10**5 + b'}',
    400,
    'the body is no JSON',
  ),
  'another model': (
    '/v1/steps',
    json.dumps(
      {'model': 'other', 'chains': [{'problem': 'x', 'steps': ['y']}]}
    ).encode(),
    404,
    "model 'other': expected one of prm",
  ),
  'a million steps': (
    '/v1/steps',
    json.dumps({'chains': [{'problem': '1', 'steps': ['1'] * 10**6}]}).encode(),
    400,
    'List should have at most',
  ),
  'too long': (
    '/v1/steps',
    json.dumps({'chains': [{'problem': '1', 'steps': ['1 ' * 500]}]}).encode(),
    400,
    'does not fit the',
  ),
  'a large body': ('/v1/steps', b' ' * (9 * 2**20), 413, 'a body above'),
  'text': ('/pooling', b'{"input": "a"}', 400, 'tokenizer of its own'),
  'nowhere': ('/v1/nothing', b'{}', 404, 'Not Found'),
}


@pytest.mark.parametrize('case', REFUSED)
def test_a_request_that_cannot_be_answered_gets_one_line(server, case):
  path, body, status, message = REFUSED[case]
  found, reply = server.post(path, body)
  assert found == status
  assert message in reply['error']['message']
  assert '\n' not in reply['error']['message']


def test_compressed_bodies_and_other_methods_are_refused(server):
  status, reply = server.post('/v1/steps', b'x', **{'content-encoding': 'gzip'})
  assert status == 415 and 'compressed' in reply['error']['message']
  for plain in ('Identity', ''):
    coding = {'content-encoding': plain}
    assert server.post('/v1/steps', b'x', **coding)[0] == 400
  assert server.get('/v1/steps')[0] == 405


def connect(server):
  return socket.create_connection(('127.0.0.1', server.port), timeout=120)


def begin_asking(connection, chains):
  """Sends the head of a request for scores; returns its body.

  Returns once the server has the request and waits for its body, so that what
  comes next comes after it.
  """
  asked = [{'problem': p, 'steps': steps} for p, steps in chains]
  body = json.dumps({'chains': asked}).encode()
  connection.sendall(
    b'POST /v1/steps HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n'
    b'Connection: close\r\nContent-Length: %d\r\n\r\n' % len(body)
  )
  assert connection.recv(1000).startswith(b'HTTP/1.1 100 ')
  return body


def rest_of_answer(connection):
  """Returns status and JSON of an answer, after which the server hangs up."""
  answer = b''.join(iter(lambda: connection.recv(65_536), b''))
  head, _, body = answer.partition(b'\r\n\r\n')
  return int(head.split()[1]), json.loads(body)


@pytest.mark.slow
def test_clients_that_send_slowly_or_hang_up_hold_nothing(server):
  """A head or a body that does not end is cut off; others go on."""
  slow, half, gone = connect(server), connect(server), connect(server)
  slow.sendall(b'POST /v1/steps HTTP/1.1\r\nHost: a\r\n')
  half.sendall(
    b'POST /v1/steps HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{'
  )
  half.shutdown(socket.SHUT_WR)
  body = json.dumps({'chains': [{'problem': PROBLEM, 'steps': STEPS}]}).encode()
  gone.sendall(
    b'POST /v1/steps HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s'
    % (len(body), body)
  )
  gone.close()
  assert server.score((PROBLEM, STEPS))[0] == 200
  assert half.recv(1000) == b''
  began = time.monotonic()
  assert slow.recv(1000) == b''  # it hangs up after ten seconds
  assert time.monotonic() - began < 20
  assert server.score((PROBLEM, STEPS))[0] == 200


def open_and_drop(server, count):
  """Opens connections, says half a word, and drops them without a goodbye."""
  linger = struct.pack('ii', 1, 0)
  together = [connect(server) for _ in range(count)]
  for connection, head in zip(together, itertools.cycle(HEADS), strict=False):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.sendall(head)
  for connection in together:
    connection.close()


def test_thousands_of_connections_leave_nothing(server):
  open_and_drop(server, 100)
  files, memory = server.files(), server.memory()
  for _ in range(CONNECTIONS // 100):
    open_and_drop(server, 100)
  assert server.score((PROBLEM, STEPS))[0] == 200
  assert server.files() <= files + 8
  assert server.memory() < memory + 50 * 2**20


@pytest.mark.slow
def test_killed_and_started_again_it_loses_no_client_that_retries(finished):
  first = LiveServer(finished).wait()
  url = f'http://127.0.0.1:{first.port}/v1'
  # Its attempts outlast five minutes.
  prm = RemotePrm(PrmServerConfig(url, attempts=48, concurrency=4))
  asked = [
    Scoring(f'mod 10 : {a} * {b}', (f'{a} * {b} = {a * b % 10}',))
    for a in range(10)
    for b in range(10)
  ]
  restarted = threading.Event()

  def ask():
    while not restarted.is_set():
      prm.score(asked)
    return prm.score(asked)

  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    found = thread.submit(ask)
    while b'path="/v1/steps",status="200"' not in first.get('/metrics')[1]:
      assert not found.done()
      time.sleep(0.01)
    first.stop(signal.SIGKILL)
    again = LiveServer(finished, port=first.port)
    try:
      again.wait()
      restarted.set()
      last = found.result(timeout=120)
    finally:
      restarted.set()
      again.stop()
  chains = [(each.problem, each.steps) for each in asked]
  wanted = prm_jax.load(finished).score_many(chains)
  for [scored], scores in zip(last, wanted, strict=True):
    np.testing.assert_allclose(scored.scores, scores, rtol=0, atol=1e-6)
  assert prm.usage.retried


def write_broken_prm(folder):
  """Writes a published PRM whose head overflows."""
  write_model('qwen_prm', folder)
  [path] = folder.glob('*.safetensors')
  tensors = load_file(path)
  tensors['score.2.weight'] = np.full_like(tensors['score.2.weight'], 3e38)
  save_file(tensors, path)


def test_a_score_that_is_not_finite_is_an_error_of_its_request_alone(
  finished, tmp_path
):
  write_broken_prm(tmp_path)
  server = LiveServer(tmp_path, '--prm', f'sound={finished}').wait()
  try:
    chains = [{'problem': 'a', 'steps': ['b']}]
    status, reply = server.post('/v1/steps', {'model': 'prm', 'chains': chains})
    assert status == 422 and 'not finite' in reply['error']['message']
    chains = [{'problem': PROBLEM, 'steps': STEPS}]
    asked = {'model': 'sound', 'chains': chains}
    assert server.post('/v1/steps', asked)[0] == 200
    status, reply = server.post('/v1/steps', {'chains': chains})
    assert status == 404 and 'expected one of prm, sound' in str(reply)
    # openr asks the address's server for values, and does not say of which PRM.
    found = [
      server.post('/get_worker_address', {'model': name})[1]['address']
      for name in ('prm', 'sound')
    ]
    assert found == [f'http://127.0.0.1:{server.port}', '']
  finally:
    server.stop()


@pytest.fixture(scope='module')
def guarded(finished, tmp_path_factory):
  """A server with two keys, which answers two requests at a time."""
  keys = tmp_path_factory.mktemp('guarded') / 'keys'
  # As an editor of Windows may write it.
  keys.write_text('first\nsecond\nschlüssel\n', encoding='utf-8-sig')
  flags = ('--keys', str(keys), '--requests', '2', '--wait-ms', '1000')
  server = LiveServer(finished, *flags)
  yield server.wait()
  server.stop()


KNOWN = {'authorization': 'Bearer second'}


def test_keys(guarded):
  body = {'chains': [{'problem': PROBLEM, 'steps': STEPS}]}
  for said in ('Bearer third', 'Basic first', 'first', 'Bearer'):
    status, _ = guarded.post('/v1/steps', body, authorization=said)
    assert status == 401
  for said in (b'bearer first', 'Bearer schlüssel'.encode()):
    status, _ = guarded.post('/v1/steps', body, authorization=said)
    assert status == 200
  for given in ({}, {'authorization': 'Bearer third'}):
    status, reply = guarded.post('/v1/steps', body, **given)
    assert status == 401 and 'expected a key' in reply['error']['message']
  assert guarded.post('/v1/steps', body, **KNOWN)[0] == 200
  assert guarded.get('/metrics')[0] == 401


def test_beyond_its_limit_it_sheds_load_and_says_when_to_ask_again(guarded):
  body = {'chains': [{'problem': PROBLEM, 'steps': STEPS}]}
  replies = guarded.at_once([body] * 12, **KNOWN)
  statuses = [status for status, _, _ in replies]
  assert sorted({*statuses}) == [200, 429]
  for status, headers, _ in replies:
    assert (headers.get('retry-after') == '1') == (status == 429)
  assert guarded.post('/v1/steps', body, **KNOWN)[0] == 200


@pytest.mark.slow
def test_a_deadline_is_kept(finished):
  server = LiveServer(finished, '--timeout', '0.3')
  try:
    status, reply = server.wait().score(*MANY)
    assert status == 503
    assert 'not answered within 0.3 seconds' in reply['error']['message']
  finally:
    server.stop()


@pytest.mark.slow
def test_sigterm_answers_what_is_under_way(finished):
  server = LiveServer(finished).wait()
  with connect(server) as asking:
    body = begin_asking(asking, MANY)
    server.process.send_signal(signal.SIGTERM)
    asking.sendall(body)
    status, reply = rest_of_answer(asking)
  end = time.monotonic() + 60
  while server.process.poll() is None:  # as of one who has no patience
    assert time.monotonic() < end
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.001)
  code, text = server.stop()
  assert status == 200
  assert len(reply['data']) == len(MANY)
  assert code == 0, text
  assert 'Traceback' not in text


def test_sigterm_while_it_loads_ends_it(finished, tmp_path):
  keys = tmp_path / 'keys'
  os.mkfifo(keys)  # it is read before a PRM is opened, and nobody writes to it
  server = LiveServer(finished, '--keys', str(keys))
  end = time.monotonic() + 120
  while True:  # until it reads
    try:
      held = os.open(keys, os.O_WRONLY | os.O_NONBLOCK)
      break
    except OSError:
      assert time.monotonic() < end
      time.sleep(0.05)
  code, text = server.stop(signal.SIGTERM)
  os.close(held)
  assert code == 0, text
  assert 'stopped before the server was open' in text
  assert 'Traceback' not in text


@pytest.mark.slow
def test_sigterm_while_it_compiles_ends_it(finished):
  """Programs that were not begun are not compiled any more."""
  server = LiveServer(finished, '--warm').wait('/health')
  code, text = server.stop(signal.SIGTERM)
  assert code == 0, text
  given = make_parser().parse_args(['--prm', str(finished), '--rows', '32'])
  sizes = open_prm('prm', str(finished), given).scorer.grid.sizes()
  assert 0 < text.count('compiling Sizes(') < len(sizes)
  assert '"ready: ' not in text


@pytest.mark.parametrize(
  ('flag', 'value'),
  [
    ('--unread', 'nan'),
    ('--unread', 'inf'),
    ('--requests', '0'),
    ('--body-bytes', '-5'),
  ],
)
def test_a_wrong_flag_is_refused(flag, value, capsys):
  with pytest.raises(SystemExit) as error:
    make_parser().parse_args(['--prm', 'folder', f'{flag}={value}'])
  assert error.value.code == 2
  assert f'argument {flag}: invalid ' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('text', 'address'),
  [
    ('runs/prm', ('prm', 'runs/prm')),
    ('sound=runs/prm', ('sound', 'runs/prm')),
    ('hf://owner/name', ('owner/name', 'hf://owner/name')),
    ('owner/name=gs://b/rate=1', ('owner/name', 'gs://b/rate=1')),
    ('gs://b/rate=1', ('rate=1', 'gs://b/rate=1')),
    ('~/rate=1/prm', ('prm', '~/rate=1/prm')),
    ('/nowhere/rate=1', ('rate=1', '/nowhere/rate=1')),
    ('n' * 256 + '=runs/prm', ('n' * 256, 'runs/prm')),
  ],
)
def test_name_and_path_of_a_prm(text, address):
  given = make_parser().parse_args(['--prm', text])
  assert given.prms == [address]


def test_a_path_that_exists_may_have_an_equals_sign(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'rate=1').mkdir()
  given = make_parser().parse_args(['--prm', 'rate=1'])
  assert given.prms == [('rate=1', 'rate=1')]


@pytest.mark.parametrize('text', ['', '=/tmp', 'sound='])
def test_a_prm_without_a_name_or_a_path_is_refused(text, capsys):
  with pytest.raises(SystemExit) as error:
    make_parser().parse_args([f'--prm={text}'])
  assert error.value.code == 2
  assert 'lacks a name or a path' in capsys.readouterr().err


def test_keys_that_are_no_text_and_devices_that_are_not_there(finished):
  with pytest.raises(UserError, match='is not text in UTF-8'):
    read_keys(sys.executable)
  given = make_parser().parse_args(['--prm', str(finished), '--model', '3'])
  with pytest.raises(UserError, match='--model=3: expected a divisor of the'):
    open_prm('prm', str(finished), given)


def test_a_style_is_only_for_prms_that_do_not_show_their_own(
  finished, tmp_path
):
  """A run and a PRM with a head take none, and a language model needs one."""
  paths = {'run': finished}
  for style in ('skywork', 'math_shepherd'):
    paths[style] = tmp_path / style
    write_model(style, paths[style])
  prms = [f'--prm={name}={path}' for name, path in paths.items()]
  given = make_parser().parse_args([*prms, '--style', 'math_shepherd'])
  for prm in open_prms(given):
    style = 'math_shepherd' if prm.name == 'math_shepherd' else ''
    wanted = prm_jax.load(paths[prm.name], style=style)
    assert prm.format.fingerprint() == wanted.format.fingerprint()


@pytest.mark.parametrize(('kind', 'heads'), [('run', 2), ('published', 4)])
def test_heads_that_do_not_divide_over_the_devices(
  kind, heads, finished, tmp_path
):
  """The server's own flag is named, and the values that it may have."""
  if kind == 'published':
    write_model('skywork', tmp_path)
  server = LiveServer(
    finished if kind == 'run' else tmp_path,
    *('--model', '8'),
    environment={'JAX_NUM_CPU_DEVICES': '8'},
  )
  try:
    assert server.process.wait(timeout=60) == 2
  finally:
    server.process.kill()
  assert server.said().splitlines()[-1] == (
    f'error: model.n_heads={heads} does not divide over --model=8 devices; set '
    f'--model to one of {"1, 2" if heads == 2 else "1, 2, 4"}'
  )


def test_the_caches_of_all_prms_take_half_of_the_memory(finished, prm):
  """Also those of a given size: one of these alone would fit."""
  length = prm.format.max_length
  rows = prefix_store.rows_that_fit(prm.model, prm.mesh, length, share=0.3)
  prms = [flag for name in 'ab' for flag in ('--prm', f'{name}={finished}')]
  given = make_parser().parse_args([*prms, '--rows', str(rows)])
  with pytest.raises(
    UserError, match=f'--rows={rows}: .* more than 25% of the'
  ):
    open_prm('a', str(finished), given)


@pytest.mark.parametrize(
  ('host', 'message'),
  [('127.0.0.1', 'already in use'), ('nowhere.invalid', '--port=')],
)
def test_an_address_that_cannot_be_had_is_one_line(host, message):
  """It is found before any PRM is opened: here there is none."""
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    server = LiveServer('/nowhere', '--host', host, port=port)
    code, text = server.stop(signal.SIGCONT)
  assert code == 2, text
  [line] = [line for line in text.splitlines() if line.startswith('error: ')]
  assert message in line and f'--host={host} --port={port}: ' in line
  assert 'Traceback' not in text


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (('--prm', 'prm=elsewhere'), 'two PRMs have the same name'),
    (('--keys', '/nowhere'), '/nowhere'),
  ],
)
def test_a_wrong_command_line_is_one_line(finished, flags, message):
  code, text = LiveServer(finished, *flags).stop(signal.SIGCONT)
  assert code == 2
  [line] = [line for line in text.splitlines() if line.startswith('error: ')]
  assert message in line
  assert 'Traceback' not in text
