// Why each cluster was split, or was not
//
// The criterion's own sentence of every round, and the conditions of a split with their values. For the
// paper's criterion also the effect of other thresholds on the recorded figures: eqs. 32 and 33 of every
// round, and eq. 39 where the similarity was computed, as in `cflower explain`.
const NEVER = ['too small', 'waiting for members'];
// The conditions of `auto`: the figure, its label, its meaning, the sign and the setting of the limit. The
// other limits vary: they are figures too, ending in `_needed` or `_by_chance`.
const CONDITIONS = [
  { key: 'margin_errors', label: 'sure members', meaning: 'margin by which four fifths of the members are nearer to their own part than to the next one, in standard errors', sign: '>' },
  { key: 'stable_rounds', label: 'stable', meaning: 'number of rounds in a row with the same parts', sign: '≥' },
  { key: 'separation', label: 'separation', meaning: 'distance of the nearest parts in standard deviations of their members; the limit is that of the null distribution', sign: '>' },
  { key: 'separation_by_angle', label: 'or by angle', meaning: 'the same for the directions of the updates', sign: '>' },
];
const compare = { '<': (a, b) => a < b, '>': (a, b) => a > b, '≥': (a, b) => a >= b };
const safeGamma = (alpha) => (known(alpha) ? Math.sqrt((1 - alpha) / 2) : null);

// What a split needed in line `i`, by the run's own thresholds.
function needs(i) {
  const { outcome, figures, mean, max, alpha, heard, members } = run.lines;
  const given = figures[i] || {};
  const list = [{ label: 'replies', value: `${heard[i]} of ${members[i]}`, needed: 'enough', met: !NEVER.includes(outcome[i]) }];
  const add = (label, value, sign, limit) => list.push({ label, value: figure(value ?? null), needed: `${sign} ${figure(limit ?? null)}`,
    met: known(value) && known(limit) ? compare[sign](value, limit) : null });
  if (run.norms) {
    add('mean norm', mean[i], '<', given.eps1 ?? run.norms.eps1);
    add('largest norm', max[i], '>', given.eps2 ?? run.norms.eps2);
    add('safe γ', safeGamma(alpha[i]), '>', run.norms.gamma);
  }
  for (const { key, label, sign, limit } of run.conditions) add(label, given[key], sign, limit ?? given[`${key}_needed`] ?? given[`${key}_by_chance`]);
  return list;
}

function meanings() {
  const rows = run.conditions.map(({ label, meaning, sign, limit }) =>
    [label, `${meaning}${known(limit) ? `; ${sign} ${limit}` : `; the limit varies`}`]);
  if (run.norms) {
    rows.push(['mean norm', 'the length of the cluster’s mean update (eq. 32): small when the cluster is stationary; < ε1'],
      ['largest norm', 'the length of the longest update of one member (eq. 33): large when the cluster is not stationary for every member; > ε2'],
      ['safe γ', 'the approximation noise that the split into two sides allows (eq. 39), √((1 − α) / 2) with α the largest similarity across the sides; > γ-max']);
  }
  if (rows.length) rows.unshift(['replies', 'enough members with a usable update']);
  return rows;
}

function drawWhy() {
  byId('why-section').hidden = run.run.kind !== 'clustered';
  if (run.run.kind !== 'clustered') return null;
  const names = [...look.lines.keys()];
  if (!names.length) return fill('why', note('No round is finished yet.'));
  const terms = meanings();
  fill('terms', terms.length ? [html('p', { class: 'hint' }, 'A split needs all of these at once:'), html('dl', { class: 'terms' },
    terms.map(([term, words]) => html('div', {}, html('dt', {}, term), html('dd', {}, words))))] : null);
  if (run.norms) drawSliders();
  names.sort((a, b) => Number(b === state.cluster) - Number(a === state.cluster));
  fill('why', names.slice(0, state.panels).map(whyPanel));
  if (names.length > state.panels) {
    byId('why').append(button(`Show 12 more of ${names.length} clusters`, () => {
      state.panels += 12;
      drawWhy();
    }, { class: 'more' }));
  }
  return run.norms ? answer() : null;
}

function whyPanel(name) {
  const lines = look.lines.get(name);
  const rounds = lines.map((i) => run.lines.round[i]);
  const splitIn = look.clusters.get(name).split;
  const did = lines.find((i) => run.lines.round[i] === splitIn);
  const shown = lines[rounds.indexOf(state.round)] ?? did ?? lines[lines.length - 1];
  const { round, outcome, reason, sentences, members } = run.lines;
  const children = look.clusters.get(name)?.children ?? [];
  return html('div', { class: `panel${state.cluster === name ? ' chosen' : ''}` },
    html('h3', {}, swatch(colorOf(name)), button(`Cluster ${name}`, () => toggle('cluster', name), { class: 'plain', 'data-key': `why:${name}` }),
      html('small', {}, `${counted(members[lines[lines.length - 1]], 'client')}; ${did === undefined ? 'not split' : `split in round ${round[did]} into ${listed(children)}`}`)),
    html('p', { class: 'reason' }, html('strong', {}, `Round ${round[shown]}, ${outcome[shown]}: `), `${sentences[reason[shown]]}.`),
    run.trials.filter(({ cluster }) => cluster === name).map((trial) => html('p', { class: 'reason trial' },
      html('strong', {}, `Round ${trial.round}, ${trial.outcome}: `), `${trial.reason}.`)),
    needsTable(shown),
    picture(`conditions-${name}`, (width) => needsPicture(name, lines, rounds, width)),
    run.norms ? picture(`norms-${name}`, (width) => normPicture(name, lines, rounds, width), { class: 'norms' }) : null,
    stretches(name, lines));
}

function needsTable(i) {
  const mark = { true: '✓ met', false: '✗ not met', null: '–' };
  return html('table', { class: 'needs' }, html('caption', { class: 'unseen' }, `What a split needed in round ${run.lines.round[i]}`),
    html('tbody', {}, needs(i).filter(({ value }) => value !== figure(null)).map(({ label, value, needed, met }) => html('tr', {}, html('th', { scope: 'row' }, label),
      html('td', {}, value), html('td', {}, needed), html('td', { class: met ? 'met' : 'unmet' }, mark[String(met)])))));
}

// Rounds in a row with the same outcome, each with the sentence of its last round.
function stretches(name, lines) {
  const { round, outcome, reason, sentences } = run.lines;
  const found = [];
  for (const i of lines) {
    const last = found[found.length - 1];
    if (last && outcome[last[1]] === outcome[i]) last[1] = i;
    else found.push([i, i]);
  }
  const items = found.map(([from, to]) => html('li', {}, button(from === to ? `Round ${round[from]}` : `Rounds ${round[from]}–${round[to]}`,
    () => toggle('round', round[to]), { class: 'plain', 'data-key': `stretch:${name}:${round[to]}` }),
  `, ${outcome[to]}: ${sentences[reason[to]]}.`));
  return html('ul', { tabindex: 0, 'aria-label': `All decisions of cluster ${name}` }, items);
}

// One row a condition, one cell a round, dark where it was met.
function needsPicture(name, lines, rounds, width) {
  const all = lines.map(needs);
  const rows = all[0].map(({ label }, row) => [label, all.map((list) => list[row].met)]).filter(([, met]) => met.some(known));
  rows.push(['split', lines.map((i) => run.lines.outcome[i] === 'split')]);
  const tall = 13;
  const [start, end, bottom] = [82, width - 6, rows.length * tall + 4];
  const span = [rounds[0], Math.max(rounds[rounds.length - 1], rounds[0] + 1)];
  const x = scale(span[0] - 0.5, span[1] + 0.5, start, end);
  const step = x(1) - x(0);
  const drawing = svg('svg', { width, height: bottom + 20 });
  rows.forEach(([label, met], row) => {
    drawing.append(svg('text', { x: start - 6, y: row * tall + 11, 'text-anchor': 'end', class: label === 'split' ? 'strong' : '' }, label));
    met.forEach((yes, k) => drawing.append(svg('rect', { x: x(rounds[k]) - step / 2, y: row * tall + 1, width: Math.max(step - 1, 0.8), height: tall - 2,
      fill: yes ? (label === 'split' ? 'var(--ink)' : 'var(--met)') : yes === null ? 'none' : 'var(--unmet)' })));
  });
  drawing.append(axes({ x, rounds: span, left: start, right: end, bottom }));
  return overRounds(drawing, { key: `conditions:${name}`, label: `Decisions of cluster ${name} by round`, rounds, x, top: 0, bottom,
    describe: (round) => decisionText(lines[rounds.indexOf(round)]) });
}

function decisionText(i) {
  const { round, cluster, outcome, reason, sentences } = run.lines;
  return [`Round ${round[i]}, cluster ${cluster[i]}: ${outcome[i]}`, sentences[reason[i]],
    ...needs(i).map(({ label, value, needed, met }) => `${met ? '✓' : met === null ? '–' : '✗'} ${label} ${value} (${needed})`)].join('\n');
}

// Whether the norms would have allowed a split with such thresholds: yes, no, or unknown where the
// sides were not recorded.
function passes(i, eps1, eps2) {
  const { mean, max, alpha, outcome, members } = run.lines;
  if (members[i] < Math.max(2, 2 * run.norms.least)) return 'no';
  if (NEVER.includes(outcome[i]) && alpha[i] === null) return 'no';
  if (mean[i] === null || mean[i] >= eps1 || max[i] <= eps2) return 'no';
  if (alpha[i] === null) return 'unknown';
  if (outcome[i] === 'too small') return 'no';
  return run.norms.gamma < safeGamma(alpha[i]) ? 'yes' : 'no';
}

// Two sliders; only what depends on them is drawn anew when they move.
function drawSliders() {
  state.eps1 ??= run.norms.eps1;
  state.eps2 ??= run.norms.eps2;
  if (byId('eps1')) return;
  const most = (values, own) => Math.max(...values.filter(known), own, 0.001) * 1.08;
  const slider = (key, symbol, words, top) => {
    const output = html('output', { for: key }, figure(state[key]));
    const input = /** @type {HTMLInputElement} */ (html('input', { id: key, type: 'range', min: 0, max: top, step: 'any', value: state[key],
      oninput: () => {
        state[key] = Number(input.value);
        output.textContent = figure(state[key]);
        writeAddress();
        answer();
      } }));
    input.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      input.value = String(Number(input.value) + (step * top) / 100);
      input.dispatchEvent(new Event('input'));
    });
    return html('div', {}, html('label', { for: key }, `${symbol} – ${words}`, output), input);
  };
  byId('whatif').hidden = false;
  fill('whatif',
    html('p', { class: 'hint' }, `What would other thresholds have done? In this run ε1 = ${run.norms.eps1}, ε2 = ${run.norms.eps2}.`),
    html('div', { class: 'sliders' }, slider('eps1', 'ε1', 'stationary below', most(run.lines.mean, run.norms.eps1)),
      slider('eps2', 'ε2', 'not stationary for a client above', most(run.lines.max, run.norms.eps2)),
      html('div', {}, button('As in the config', () => {
        Object.assign(state, { eps1: null, eps2: null });
        fill('whatif');
        drawSliders();
        writeAddress();
        answer();
      }))),
    html('p', { class: 'legend' }, html('span', {}, sample(null), 'norm of the mean update'), html('span', {}, sample('2 3'), 'largest norm of a client'),
      html('span', {}, '◆ would split'), html('span', {}, '◇ norms would allow it, sides not recorded')),
    html('ul', { id: 'answers', 'aria-live': 'polite', tabindex: 0, 'aria-label': 'What these thresholds would have done' }));
}
const sample = (dash) => svg('svg', { width: 26, height: 8, 'aria-hidden': 'true' },
  svg('line', { x1: 0, x2: 26, y1: 4, y2: 4, stroke: 'currentColor', 'stroke-width': 2, 'stroke-dasharray': dash }));

function answer() {
  const answers = [];
  for (const [name, lines] of look.lines) {
    const first = (wanted) => lines.find((i) => passes(i, state.eps1, state.eps2) === wanted);
    const [sure, maybe] = [first('yes'), first('unknown')];
    const did = lines.find((i) => run.lines.outcome[i] === 'split');
    const was = did === undefined ? 'it was not split' : `it was split in round ${run.lines.round[did]}`;
    const said = [];
    if (maybe !== undefined && (sure === undefined || maybe < sure)) {
      said.push(`the norms would have allowed a split in round ${run.lines.round[maybe]}, sides not recorded`);
    }
    if (sure !== undefined) said.push(`would have split in round ${run.lines.round[sure]}`);
    if (!said.length) said.push(did === undefined ? 'would not have split'
      : `would not have split up to round ${run.lines.round[did]}; what came then is not known`);
    if (answers.length < 40) answers.push(html('li', {}, `Cluster ${name}: ${said.join('; ')} (in the run, ${was}).`));
  }
  fill('answers', answers);
  for (const stage of document.querySelectorAll('#why .norms > .stage')) /** @type {any} */ (stage).redraw(true);
}

// The norms of one cluster, with a scale of its own that has room for the thresholds.
// A slider that is pushed beyond it leaves its line at the upper edge.
function normPicture(name, lines, rounds, width) {
  const height = 190;
  const [start, end, top, bottom] = [32, width - 56, 22, height - 20];
  const highest = Math.max(0.001, run.norms.eps2, ...lines.flatMap((i) => [run.lines.mean[i], run.lines.max[i]])) * 1.08;
  const span = [rounds[0], Math.max(rounds[rounds.length - 1], rounds[0] + 1)];
  const x = scale(span[0] - 0.5, span[1] + 0.5, start, end);
  const y = scale(0, highest, bottom, top);
  const color = colorOf(name);
  const drawing = svg('svg', { width, height });
  drawing.append(axes({ x, y, rounds: span, values: ticks(0, highest, 4), left: start, right: end, bottom }));
  for (const [column, dash] of [['max', '2 3'], ['mean', null]]) {
    const points = lines.map((i) => [x(run.lines.round[i]), run.lines[column][i] === null ? null : y(run.lines[column][i])]);
    drawing.append(svg('path', { fill: 'none', stroke: color, 'stroke-width': 2.2, 'stroke-dasharray': dash, d: path(points) }));
    if (points.length === 1) drawing.append(svg('circle', { cx: points[0][0], cy: points[0][1] ?? bottom, r: 3, fill: color }));
  }
  let last = Infinity;
  for (const [symbol, value] of [['ε1', state.eps1], ['ε2', state.eps2]]) {
    const at = y(Math.min(value, highest));
    const text = Math.abs(at - last) < 13 ? last - 13 : at;
    last = at;
    drawing.append(svg('line', { x1: start, x2: end, y1: at, y2: at, stroke: 'var(--ink)', 'stroke-dasharray': '7 4' }),
      svg('text', { x: end + 4, y: Math.max(text, top) + 4, class: 'strong' }, `${symbol} ${figure(value)}${value > highest ? ' ↑' : ''}`));
  }
  for (const i of lines) {
    const allowed = passes(i, state.eps1, state.eps2);
    if (allowed !== 'no') {
      drawing.append(svg('path', { d: diamond(x(run.lines.round[i]), top - 8, 6), stroke: 'var(--ink)', 'stroke-width': 1.4,
        fill: allowed === 'yes' ? 'var(--ink)' : 'var(--card)' }));
    }
  }
  return overRounds(drawing, { key: `norms:${name}`, label: `Norms of cluster ${name} by round`, rounds, x, top, bottom,
    describe: (round) => decisionText(lines[rounds.indexOf(round)]) });
}
