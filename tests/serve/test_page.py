"""The page that a server shows, in a real browser."""

import pytest

from tests.serve.live_server import LiveServer
from tests.shared.browser import chromium, needs_chromium

pytestmark = [
  pytest.mark.job,
  pytest.mark.slow,
  pytest.mark.once,
  needs_chromium,
]


@pytest.fixture(scope='module')
def page(finished):
  server = LiveServer(finished).wait()
  with chromium() as browser:
    page = browser.new_page(viewport={'width': 600, 'height': 800})
    page.errors = []
    page.on('pageerror', lambda error: page.errors.append(str(error)))
    page.goto(f'http://127.0.0.1:{server.port}/')
    yield page
    assert not page.errors
  assert server.stop()[0] == 0


def score(page, *steps):
  page.fill('#problem', 'mod 10 : 7 * 3 + 4')
  page.fill('#steps', '\n'.join(steps))
  page.click('button')
  page.wait_for_selector('button:enabled')


def test_steps_are_scored_in_their_order(page):
  score(page, '7 * 3 = 1', '', '1 + 4 = 6')
  assert page.locator('#scores li .text').all_inner_texts() == [
    '7 * 3 = 1',
    '1 + 4 = 6',
  ]
  assert page.inner_text('#total').startswith('Lowest step: 0.')
  # Only the steps of the last question are there.
  score(page, '7 * 3 = 1')
  assert page.locator('#scores li').count() == 1


def test_a_second_question_waits_for_the_answer_to_the_first(page):
  page.route('**/v1/steps', lambda route: None)  # it never answers
  page.fill('#steps', '7 * 3 = 1')
  page.click('button')
  assert page.is_disabled('button')
  page.unroute('**/v1/steps')
  page.reload()


def fits(page):
  return page.evaluate('document.documentElement.scrollWidth <= innerWidth')


def test_a_long_word_makes_the_page_no_wider(page):
  step = '1' * 30 + ' ' + '2' * 400
  score(page, step)
  assert page.inner_text('#error')  # this PRM knows no such word
  assert fits(page)
  # Another would score it.
  reply = {
    'data': [{'index': 0, 'scores': [0.5], 'score': 0.5}],
    'usage': {'tokens': 2, 'cached_tokens': 0},
  }
  page.route('**/v1/steps', lambda route: route.fulfill(json=reply))
  score(page, step)
  page.unroute('**/v1/steps')
  assert page.locator('#scores li .text').all_inner_texts() == [step]
  assert fits(page)
