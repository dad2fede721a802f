"""The report in a real browser: 20,000 chains are found, opened and saved."""

import json
import random

import pytest

from prm_jax.data.chains import Chain, StepLabel, to_dict
from prm_jax.data.readers import read_chains
from prm_jax.report import write_report
from tests.report.workdir import write
from tests.shared.browser import chromium, needs_chromium, sync_api

pytestmark = [
  pytest.mark.slow,
  pytest.mark.once,
  needs_chromium,
]

COUNT, PER_PROBLEM, CUT = 20_000, 8, 0.4
HOSTILE = '</script><img src=x onerror="document.title=1"> & \u2028'


def make_record(number, chance):
  steps = [f'{chance.random()} {HOSTILE}' for _ in range(chance.randint(2, 9))]
  error = chance.randrange(-len(steps), len(steps))
  labels = tuple(
    StepLabel(float(not 0 <= error <= i), 'rollout', 1, 4)
    for i in range(len(steps))
  )
  chain = Chain(
    f'problem {number // PER_PROBLEM} {HOSTILE}',
    tuple(steps),
    f'{number}',
    chance.choice([True, False, None]),
    labels,
    {'id': f'{number}', 'odd': float('nan')},
  )
  return to_dict(chain) | {
    'scores': [round(chance.random() ** 0.3, 4) for _ in steps],
    'chosen': number % PER_PROBLEM == 0,
    'note': None,
  }


@pytest.fixture(scope='module')
def records():
  chance = random.Random(0)
  return [make_record(number, chance) for number in range(COUNT)]


@pytest.fixture(scope='module')
def report(records, tmp_path_factory):
  return write_report(write(tmp_path_factory.mktemp('many'), records=records))


@pytest.fixture(scope='module')
def browser():
  with chromium() as browser:
    yield browser


def times_busy(page):
  """Returns what tells how long the page has computed, in seconds.

  Other tests beside it take the processor from it, and are not counted.
  """
  client = page.context.new_cdp_session(page)
  client.send('Performance.enable', {'timeDomain': 'threadTicks'})

  def busy():
    metrics = client.send('Performance.getMetrics')['metrics']
    return next(m['value'] for m in metrics if m['name'] == 'TaskDuration')

  return busy


@pytest.fixture(params=[(1200, 900), (390, 844)], ids=['wide', 'phone'])
def page(request, browser, report):
  """Opens the report; `page.errors` collects messages of the console."""
  width, height = request.param
  page = browser.new_page(viewport={'width': width, 'height': height})
  page.errors = []
  page.busy = times_busy(page)
  page.on('console', lambda message: page.errors.append(message.text))
  page.on('pageerror', lambda error: page.errors.append(str(error)))
  page.goto(report.as_uri())
  page.wait_for_selector('#explorer tbody tr')
  yield page
  assert not page.errors
  assert page.title() != '1'  # no text became a script
  page.close()


def found(page):
  return int(page.inner_text('#explorer output').split()[0].replace(',', ''))


def test_it_opens_and_filters_fast(page):
  assert 0 < page.busy() < 3
  assert found(page) == COUNT
  kinds = page.locator('[name=kind] option').evaluate_all('all => all.length')
  assert kinds == 6
  for number in range(kinds):
    before = page.busy()
    page.evaluate(
      """number => {
        const kind = document.querySelector('[name=kind]');
        kind.selectedIndex = number;
        kind.dispatchEvent(new Event('change'));
        document.body.offsetHeight;  // laid out
      }""",
      number,
    )
    assert 0 < page.busy() - before < 0.2


def test_nothing_is_wider_than_the_screen(page):
  page.click('#explorer button.open >> nth=1')
  assert page.evaluate(
    'document.documentElement.scrollWidth <= innerWidth'
    " && [...document.querySelectorAll('#explorer .scroll')]"
    '.every(e => e.scrollWidth <= e.clientWidth)'
  )


def lowest(record):
  return min(record['scores'])


def first_error(record):
  values = [label['value'] for label in record['labels']]
  return values.index(0.0) if 0.0 in values else -1


KINDS = {
  'confident': lambda r: r['outcome'] is False and lowest(r) >= CUT,
  'lucky': lambda r: r['outcome'] is True and first_error(r) >= 0,
  'alarmed': lambda r: first_error(r) < 0 and lowest(r) < CUT,
  'chosen': lambda r: r['chosen'],
}


@pytest.mark.parametrize('kind', KINDS)
def test_saved_chains_can_be_read_again(kind, page, records, tmp_path):
  page.select_option('[name=kind]', kind)
  wanted = [r for r in records if KINDS[kind](r)]
  assert 0 < found(page) == len(wanted) < COUNT
  with page.expect_download() as download:
    page.click('[name=save]')
  file = tmp_path / download.value.suggested_filename
  download.value.save_as(file)
  chains, summary = read_chains(file, 'chains')
  assert len(chains) == len(wanted) and not summary.skipped
  plain = [
    {
      k: v
      for k, v in r.items()
      if k not in ('scores', 'chosen', 'note', 'meta')
    }
    for r in wanted
  ]
  assert [
    {k: v for k, v in to_dict(chain).items() if k != 'meta'} for chain in chains
  ] == json.loads(json.dumps(plain))


def test_the_keyboard_can_search_sort_and_open(page, records):
  page.focus('[name=words]')
  page.keyboard.type('problem 77 ')
  sync_api.expect(page.locator('#explorer output')).to_contain_text(
    f'{PER_PROBLEM} of {COUNT:,} chains'
  )
  page.focus('#explorer [data-by=lowest]')
  page.keyboard.press('Enter')
  of_problem = records[77 * PER_PROBLEM : 78 * PER_PROBLEM]
  assert (
    page.locator('th[aria-sort=ascending]').inner_text().startswith('lowest')
  )
  shown = page.locator('#explorer tbody tr td:nth-child(4)').all_inner_texts()
  assert shown == [f'{s:.2f}' for s in sorted(map(lowest, of_problem))]
  page.focus('#explorer button.open >> nth=0')
  page.keyboard.press('Enter')
  # Beside it stands the chosen chain of the problem.
  views = page.locator('#explorer .opened .chain')
  first = min(of_problem, key=lowest)
  assert views.count() == 4
  steps = views.nth(0).locator('.step')
  assert steps.locator('.score').all_inner_texts() == [
    f'{s:.2f}' for s in first['scores']
  ]
  words = steps.locator('.words').all_text_contents()
  assert words == first['steps']
  assert views.nth(1).locator('.meta').inner_text().startswith('Chosen')
