'use strict';
// Shows chains, which the page holds as data, in a table, and the steps of a
// chain on demand. The text of a model is only ever set as text, never as HTML.
(() => {
  const ROWS = 25;
  const BESIDE = 3;
  const section = document.getElementById('explorer');
  const {cut, problems, chains} = JSON.parse(
    document.getElementById('chain-data').textContent);
  const find = name => section.querySelector(`[name=${name}]`);
  const body = section.querySelector('tbody');

  const ofProblem = problems.map(() => []);
  chains.forEach((chain, i) => {
    const known = chain.scores.filter(score => score !== null);
    chain.index = i;
    chain.lowest = known.length ? Math.min(...known) : null;
    const own = chain.cut ?? cut;  // a set may have a threshold of its own
    chain.flag = chain.scores.findIndex(s => s !== null && s < own);
    chain.text = [problems[chain.problem], ...chain.steps, chain.answer ?? '']
      .join('\n').toLowerCase();
    ofProblem[chain.problem].push(chain);
  });

  const KINDS = {
    all: () => true,
    confident: c => c.outcome === false && c.flag < 0,
    lucky: c => c.outcome === true && c.error >= 0,
    missed: c => c.error >= 0 && c.flag !== c.error,
    alarmed: c => Boolean(c.labels) && c.error < 0 && c.flag >= 0,
    chosen: c => c.chosen,
  };
  const COLUMNS = {
    index: c => c.index,
    problem: c => problems[c.problem],
    outcome: c => ({true: 0, false: 1})[c.outcome] ?? 2,
    lowest: c => c.lowest ?? 2,
    steps: c => c.steps.length,
    error: c => (c.labels ? (c.error < 0 ? 1e6 : c.error) : 1e7),
  };
  const OUTCOMES = {true: 'right', false: 'wrong'};
  const state = {found: chains, page: 0, by: 'index', down: false};

  function make(tag, values = {}, ...children) {
    const element = Object.assign(document.createElement(tag), values);
    element.append(...children);
    return element;
  }

  function stepsOf(chain) {
    const list = make('ol', {className: 'steps'});
    chain.steps.forEach((text, i) => {
      const score = chain.scores[i];
      const item = make('li', {className: 'step'});
      if (i === chain.error) item.classList.add('error');
      if (chain.error >= 0 && i > chain.error) item.classList.add('after');
      const shown = make('span', {className: 'score'},
        score === null ? '–' : score.toFixed(2));
      if (score !== null) {
        item.style.setProperty('--s', `${Math.round(100 * score)}%`);
        shown.append(make('i'));
      }
      const words = make('div', {},
        make('p', {className: 'words', textContent: text}));
      const marks = [];
      if (i === chain.error) marks.push('✗ First error');
      if (i === chain.flag) marks.push('⚑ Flagged');
      const label = chain.labels?.[i];
      if (label?.[3]) marks.push(`${label[2]} of ${label[3]} rollouts end right`);
      if (marks.length) {
        words.append(make('span', {className: 'mark'}, marks.join(', ')));
      }
      item.append(make('span', {className: 'number'}, `${i + 1}`), shown, words);
      list.append(item);
    });
    return list;
  }

  function viewOf(chain) {
    const about = make('p', {className: 'meta'});
    if (chain.chosen) about.append(make('b', {}, 'Chosen'), ' · ');
    about.append('answer ', make('b', {className: 'words'}, chain.answer ?? 'none'),
      ', ', make('b', {}, OUTCOMES[chain.outcome] ?? 'not checked'));
    const view = make('article', {className: 'chain'}, about);
    if (chain.note) view.append(make('p', {className: 'note'}, chain.note));
    view.append(stepsOf(chain));
    return view;
  }

  // The chain, and others of its problem: the chosen first, then the best.
  function detailsOf(chain) {
    const others = ofProblem[chain.problem].filter(c => c !== chain)
      .sort((a, b) => Boolean(b.chosen) - Boolean(a.chosen) ||
        (b.lowest ?? -1) - (a.lowest ?? -1)).slice(0, BESIDE);
    const cell = make('td', {colSpan: 6},
      make('p', {className: 'words', textContent: problems[chain.problem]}));
    const beside = make('div', {className: 'beside'}, viewOf(chain),
      ...others.map(viewOf));
    cell.append(beside);
    return make('tr', {className: 'opened'}, cell);
  }

  function rowOf(chain) {
    const open = make('button', {type: 'button', className: 'open'},
      problems[chain.problem].slice(0, 120));
    open.setAttribute('aria-expanded', 'false');
    const cells = [
      chain.index + 1, open, OUTCOMES[chain.outcome] ?? '–',
      chain.lowest === null ? '–' : chain.lowest.toFixed(2), chain.steps.length,
      chain.labels ? (chain.error < 0 ? 'none' : chain.error + 1) : '–',
    ];
    const row = make('tr', {}, ...cells.map(cell => make('td', {}, cell)));
    open.addEventListener('click', () => {
      const shut = open.getAttribute('aria-expanded') === 'true';
      open.setAttribute('aria-expanded', String(!shut));
      if (shut) row.nextSibling.remove();
      else row.after(detailsOf(chain));
    });
    return row;
  }

  function show() {
    const pages = Math.max(1, Math.ceil(state.found.length / ROWS));
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    const start = state.page * ROWS;
    body.replaceChildren(
      ...state.found.slice(start, start + ROWS).map(rowOf));
    section.querySelector('output').textContent =
      `${state.found.length.toLocaleString('en')} of ` +
      `${chains.length.toLocaleString('en')} chains, page ${state.page + 1} of ` +
      pages.toLocaleString('en');
    find('back').disabled = state.page === 0;
    find('forth').disabled = state.page === pages - 1;
    for (const button of section.querySelectorAll('[data-by]')) {
      const by = button.dataset.by === state.by;
      button.closest('th').setAttribute('aria-sort',
        by ? (state.down ? 'descending' : 'ascending') : 'none');
    }
  }

  function filter() {
    const wanted = find('words').value.toLowerCase();
    const kind = KINDS[find('kind').value];
    const value = COLUMNS[state.by];
    const sign = state.down ? -1 : 1;
    state.found = chains.filter(c => kind(c) && c.text.includes(wanted))
      .sort((a, b) => {
        const x = value(a), y = value(b);
        return (x < y ? -sign : x > y ? sign : 0) || a.index - b.index;
      });
    state.page = 0;
    show();
  }

  // Saves one record per line in the format `chains`, which data readers take.
  function save() {
    const whole = state.found.filter(c => !c.cropped);
    const lines = whole.map(c => JSON.stringify({
      problem: problems[c.problem], steps: c.steps, answer: c.answer,
      outcome: c.outcome,
      labels: (c.labels ?? []).map(([value, source, successes, trials, neutral]) =>
        ({value, source, successes, trials, neutral})),
      meta: c.meta ?? {},
    }) + '\n');
    const link = make('a', {download: 'chains.jsonl', href: URL.createObjectURL(
      new Blob(lines, {type: 'application/jsonl'}))});
    link.click();
    URL.revokeObjectURL(link.href);
    const left = state.found.length - whole.length;
    if (left) {
      section.querySelector('output').textContent +=
        `; ${left} too long for this page, not saved`;
    }
  }

  section.querySelector('form').addEventListener(
    'submit', event => event.preventDefault());
  let waiting;
  find('words').addEventListener('input', () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 80);
  });
  find('kind').addEventListener('change', filter);
  find('back').addEventListener('click', () => { state.page -= 1; show(); });
  find('forth').addEventListener('click', () => { state.page += 1; show(); });
  find('save').addEventListener('click', save);
  for (const button of section.querySelectorAll('[data-by]')) {
    button.addEventListener('click', () => {
      state.down = state.by === button.dataset.by && !state.down;
      state.by = button.dataset.by;
      filter();
    });
  }
  section.hidden = false;
  document.querySelector('[href="#explorer"]').hidden = false;
  show();
})();
