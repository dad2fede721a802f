"""A search and its abstention filter on the page."""

import copy
import json

import numpy as np
import pytest

from prm_jax.data import chains
from prm_jax.evals.abstain import abstain_section
from prm_jax.evals.search import search_section
from prm_jax.report import search_sections, write_report
from prm_jax.runtime.errors import UserError
from tests.evals.search_chains import chosen
from tests.report.workdir import parse, table, write


def search_chains(start, count):
  rng = np.random.default_rng(start)
  scores = rng.random(count)
  return [
    chosen(start + i, p > 0.3, (0.99, float(p))) for i, p in enumerate(scores)
  ]


TESTED = search_chains(1000, 60)
SECTION = abstain_section(search_chains(0, 300), TESTED, 0.1)


def abstain_page(workdir, section, results=None):
  write(workdir, results or {})
  (workdir / 'abstain.json').write_text(json.dumps({'abstain': section}))
  return parse(write_report(workdir)).by_id('abstain')


def test_amounts_are_short():
  assert [
    search_sections.format_amount(v)
    for v in (0, 0.254, 12.34, 784.4, 12_345, 3.14e9, 999.6e6, 999.4e6)
  ] == ['0', '0.254', '12.3', '784', '12,345', '3.14G', '1G', '999M']


def test_without_known_answers_a_failure_counts_as_nothing(tmp_path):
  found = search_section([], ['no step'])
  page = parse(write_report(write(tmp_path, {'search': found})))
  said = page.by_id('search').all('p')[0].text
  assert 'The search failed for 1.' in said
  assert 'count as wrong' not in said


def test_the_page_shows_what_evals_returns(tmp_path):
  found = search_section(
    [
      chosen('a', True, dead={'cut <off>': 1200}, policy_flops=0, prm_flops=0),
      chosen(
        'b',
        False,
        ended=False,
        policy_flops=0,
        prm_flops=0,
        lost=2,
        saved_tokens=1234,
      ),
    ],
    ['no step'],
  )
  page = parse(write_report(write(tmp_path, {'search': found})))
  section = page.by_id('search')
  said = section.all('p')[0].text
  assert said.startswith('The chosen answer is right for 33.3% [0.8, 90.6]')
  assert 'The search failed for 1, which count as wrong.' in said
  assert 'The chosen chain is complete for 33.3%.' in said
  assert 'Rejecting chains early saved an estimated 1,234 tokens.' in said
  costs, dead, failures = section.all('table')
  rows = table(costs)
  assert ['tokens written by the policy', '100', '[100, 100]'] in rows
  assert not any('FLOPs' in row[0] for row in rows)  # 0 is not known
  assert table(dead) == [['cut <off>', '1,200']]
  assert table(failures) == [['no step', '1']]
  assert '2 requested completions could not be obtained' in section.text
  assert '#search' in [a.attributes['href'] for a in page.all('a')]


def test_unknown_answers_and_failed_searches(tmp_path):
  unknown = search_section([chosen('a', None)])
  section = parse(write_report(write(tmp_path, {'search': unknown})))
  assert (
    '1 problems, whose answers are not known' in section.by_id('search').text
  )
  failed = search_section([], ['x', 'x'])
  section = parse(write_report(write(tmp_path, {'search': failed})))
  assert 'The search failed for 2' in section.by_id('search').text


def test_the_chosen_chains_show_their_scores(tmp_path):
  lines = [chains.to_dict(chosen('a', True, (0.9, None)))]
  section = parse(write_report(write(tmp_path, {}, lines))).by_id('chains')
  assert [step.text for step in section.all('li')] == [
    '1 0.90 step 0',
    '2 – step 1',  # noqa: RUF001
  ]
  assert 'style' not in section.all('li')[1].attributes
  lines[0]['meta']['search']['scores'] = [0.9]
  with pytest.raises(UserError, match=r'jsonl:1: expected 2 scores'):
    write_report(write(tmp_path, {}, lines))


def test_the_filter_is_shown_as_it_was_chosen(tmp_path):
  section = abstain_page(tmp_path, SECTION)
  tested = SECTION['tested']
  said = section.all('p')[0].text
  assert f'{tested["answered"]} of 60 problems' in said
  assert (
    'to leave, with confidence 0.95, at most 0.1 of the answers wrong' in said
  )
  assert (
    f'without the filter {100 * tested["error_of_all"]:.1f}% of all' in said
  )
  (figure,) = section.all('svg')
  last = SECTION['risk_coverage']['risk'][-1]
  assert f'{100 * last:.1f}% at 100.0%' in figure.attributes['aria-label']
  (dot,) = figure.all('circle')
  share = tested['answered'] / 60
  assert float(dot.attributes['cx']) == pytest.approx(
    46 + share * (620 - 46), rel=1e-3
  )
  areas, decisions = section.all('table')
  curve = SECTION['risk_coverage']
  assert [row[1] for row in table(areas)] == [
    f'{curve[name]:.4f}' for name in ('aurc', 'aurc_random', 'aurc_best')
  ]
  rows = table(decisions)[1:]
  assert len(rows) == search_sections.MAX_DECISIONS
  assert 'the first 24 of 60' in section.text
  for row, each in zip(rows, SECTION['problems'], strict=False):
    assert row[0] == each['id']
    assert row[1] == ('answered' if each['answered'] else 'abstained')
    outcome = 'right' if each['outcome'] else 'wrong'
    assert row[2:4] == [f'7 {outcome}', f'{each["probability"]:.2f}']
    assert row[4] == f'step 1 step 2 ({each["weakest_step"]["score"]:.2f})'


def test_without_a_safe_threshold_no_problem_is_answered(tmp_path):
  section = abstain_page(
    tmp_path, abstain_section(search_chains(0, 300), TESTED, 0.001)
  )
  assert 'no problem is answered' in section.all('p')[0].text
  assert not section.all('circle')


def test_texts_of_a_model_are_escaped(tmp_path):
  evil = '<script>x()</script>'
  section = copy.deepcopy(SECTION)
  section['problems'][0] |= {'id': evil, 'answer': evil}
  section['problems'][0]['weakest_step']['text'] = evil
  shown = abstain_page(tmp_path, section)
  assert not shown.all('script')
  assert table(shown.all('table')[1])[1][0] == evil


@pytest.mark.parametrize(
  'name, broken, named',
  [
    ('search', lambda s: s.update(problems='x'), r"search\.problems is 'x'"),
    ('search', lambda s: s.pop('cost'), r'search\.cost: expected an object'),
    ('search', lambda s: s.update(dead={'a': 'b'}), r'search\.dead'),
    ('search', lambda s: s.update(accuracy=0.5), r'search\.accuracy: expect'),
    ('abstain', lambda s: s.update(tested=1), r'abstain\.tested'),
    ('abstain', lambda s: s.update(confidence=95), r'confidence is 95'),
    ('abstain', lambda s: s.update(problems=[1]), r'abstain\.problems'),
    ('abstain', lambda s: s.update(risk_coverage={'risk': 1}), 'coverage'),
    # What is not checked value by value is still no traceback.
    (
      'abstain',
      lambda s: s['problems'][0].update(weakest_step=True),
      'does not have the documented form .TypeError',
    ),
    (
      'abstain',
      lambda s: s['tested'].pop('error_of_all'),
      'does not have the documented form .KeyError',
    ),
  ],
)
def test_a_malformed_section_is_one_line_that_names_it(
  tmp_path, name, broken, named
):
  sections = {
    'search': search_section([chosen('a')]),
    'abstain': copy.deepcopy(SECTION),
  }
  broken(sections[name])
  with pytest.raises(UserError, match=named) as caught:
    abstain_page(tmp_path, sections['abstain'], {'search': sections['search']})
  file = 'results.json' if name == 'search' else 'abstain.json'
  assert file in str(caught.value) and '\n' not in str(caught.value)
