// Norms, decisions, and other thresholds
//
// What other thresholds would have done is asked of the recorded figures: eqs. 32 and 33 of every
// round, and eq. 39 where the similarity was computed. `cflower explain` answers the same in words.
const OUTCOMES = {
  split: ['var(--o-split)', 'split'],
  'sides not apart enough': ['var(--o-apart)', 'sides not apart enough'],
  'sides not steady yet': ['var(--o-steady)', 'sides not steady yet'],
  'clients content': ['var(--o-content)', 'clients content'],
  'still moving': ['var(--o-moving)', 'still moving'],
};
const outcomeColor = (outcome) => OUTCOMES[outcome]?.[0] ?? 'var(--o-none)';
const NEVER = ['too small', 'too few heard from'];

function passes(i, eps1, eps2) {
  const { mean, max, alpha, outcome, members } = run.lines;
  if (members[i] < Math.max(2, 2 * run.config['min-cluster-size'])) return 'no';
  if (NEVER.includes(outcome[i]) && alpha[i] === null) return 'no';
  if (mean[i] === null || mean[i] >= eps1 || max[i] <= eps2) return 'no';
  // Another criterion's similarity is not the one that eq. 39 asks for.
  if (alpha[i] === null || run.run.criterion !== 'norms') return 'unknown';
  if (outcome[i] === 'too small') return 'no';
  return run.config['gamma-max'] < Math.sqrt((1 - alpha[i]) / 2) ? 'yes' : 'no';
}

function thresholds(i) {
  const figures = run.lines.figures[i] || {};
  const fixed = run.run.criterion === 'norms';
  return {
    eps1: figures.eps1 ?? (fixed ? run.config.eps1 : null),
    eps2: figures.eps2 ?? (fixed ? run.config.eps2 : null),
  };
}

function drawNorms() {
  const names = [...look.lines.keys()];
  if (!names.length) return fill('norms', html('p', { class: 'note' }, 'No round is finished yet.'));
  state.eps1 ??= run.config.eps1;
  state.eps2 ??= run.config.eps2;
  drawSliders();
  byId('norms-hint').textContent = (run.run.criterion === 'norms'
    ? 'A cluster may split in a round in which the norm of its mean update is below ε1 while some client’s own update is above ε2.'
    : 'Above the norms of the updates, below what the criterion went by; dotted is what a figure has to exceed.')
    + ' The strip between tells each round’s outcome. Each panel has its own scale. Point at a round, or move to it with the arrow keys, for its decision.';
  const seen = new Set(run.lines.outcome);
  const squares = [...seen].map((outcome) =>
    html('span', {}, swatch(outcomeColor(outcome)), OUTCOMES[outcome]?.[1] ?? outcome));
  fill('legend', html('span', {}, sample(null), 'norm of the mean update'),
    html('span', {}, sample('2 3'), 'largest norm of a client'), squares,
    html('span', {}, '◆ would split'), html('span', {}, '◇ norms would allow it, sides not recorded'));
  const panels = names.slice(0, state.panels).map(normPanel);
  fill('norms', panels);
  if (names.length > state.panels) {
    byId('norms').append(html('button', { type: 'button', class: 'more', onclick: () => {
      state.panels += 12;
      drawNorms();
    } }, `Show 12 more of ${names.length} clusters`));
  }
  return whatIf();
}
const sample = (dash) => svg('svg', { width: 26, height: 8, 'aria-hidden': 'true' },
  svg('line', { x1: 0, x2: 26, y1: 4, y2: 4, stroke: 'currentColor', 'stroke-width': 2, 'stroke-dasharray': dash }));

// Two sliders; only the layer of marks is drawn anew when they move.
function drawSliders() {
  if (byId('eps1')) return;
  const top = (values) => Math.max(...values.filter((v) => v !== null), 0.001) * 1.08;
  const most = { eps1: top(run.lines.mean.concat(run.config.eps1)), eps2: top(run.lines.max.concat(run.config.eps2)) };
  const slider = (key, symbol, words) => {
    const output = html('output', { for: key }, figure(state[key]));
    const input = html('input', { id: key, type: 'range', min: 0, max: most[key], step: 'any', value: state[key],
      oninput: () => {
        state[key] = Number(input.value);
        output.textContent = figure(state[key]);
        whatIf();
      } });
    input.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      input.value = Number(input.value) + (step * most[key]) / 100;
      input.dispatchEvent(new Event('input'));
    });
    return html('div', {}, html('label', { for: key }, `${symbol} – ${words}`, output), input);
  };
  fill('whatif',
    html('p', { class: 'hint' }, 'What would other thresholds have done? In this run '
      + (run.run.criterion === 'norms' ? `ε1 = ${run.config.eps1}, ε2 = ${run.config.eps2}.`
        : `the criterion was “${run.run.criterion}”, which goes by other figures; the sliders ask the criterion of norms instead.`)),
    html('div', { class: 'sliders' }, slider('eps1', 'ε1', 'stationary below'),
      slider('eps2', 'ε2', 'restless above'),
      html('div', {}, html('button', { type: 'button', onclick: () => {
        state.eps1 = run.config.eps1;
        state.eps2 = run.config.eps2;
        fill('whatif');
        drawSliders();
        whatIf();
      } }, 'As in the config'))),
    html('ul', { id: 'answers', 'aria-live': 'polite', tabindex: 0, 'aria-label': 'What these thresholds would have done' }));
}

function whatIf() {
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
  for (const panel of document.querySelectorAll('#norms .panel > div')) panel.mark?.();
}

// One panel a cluster, each with a scale of its own that has room for the thresholds.
// A slider that is pushed beyond it leaves its line at the upper edge.
function normPanel(name) {
  const lines = look.lines.get(name);
  const rounds = lines.map((i) => run.lines.round[i]);
  const box = picture((width) => normPicture(name, lines, rounds, width, box));
  const members = run.lines.members[lines[lines.length - 1]];
  return html('div', { class: 'panel' }, html('h3', {}, swatch(colorOf(name)), `Cluster ${name}`,
    html('small', {}, counted(members, 'client'))), box,
  lines.some((i) => figureKeys(i).length) ? picture((width) => figurePicture(name, lines, rounds, width)) : null);
}

function normPicture(name, lines, rounds, width, box) {
  const height = 216;
  const [left, right, top, bottom] = [32, width - 56, 22, height - 42];
  const values = lines.flatMap((i) => [run.lines.mean[i], run.lines.max[i], thresholds(i).eps2 ?? run.config.eps2]);
  const highest = values.reduce((most, v) => (v !== null && v > most ? v : most), 0.001) * 1.08;
  const span = [rounds[0], Math.max(rounds[rounds.length - 1], rounds[0] + 1)];
  const x = scale(span[0] - 0.5, span[1] + 0.5, left, right);
  const y = scale(0, highest, bottom, top);
  const color = colorOf(name);
  const drawing = svg('svg', { width, height });
  drawing.append(axes({ x, y, rounds: span, values: ticks(0, highest, 4), left, right, bottom: bottom + 14 }));
  const cell = Math.max(1, x(1) - x(0) - 1);
  for (const i of lines) {
    drawing.append(svg('rect', { x: x(run.lines.round[i]) - cell / 2, y: bottom + 3, width: cell, height: 9,
      fill: outcomeColor(run.lines.outcome[i]) }));
  }
  const line = (column, dash) => svg('path', { fill: 'none', stroke: color, 'stroke-width': 2.2,
    'stroke-dasharray': dash,
    d: path(lines.map((i) => [x(run.lines.round[i]), run.lines[column][i] === null ? null : y(run.lines[column][i])])) });
  drawing.append(line('max', '2 3'), line('mean', null));
  if (lines.length === 1) {
    for (const column of ['mean', 'max']) {
      drawing.append(svg('circle', { cx: x(rounds[0]), cy: y(run.lines[column][lines[0]]), r: 3, fill: color }));
    }
  }
  if (run.run.criterion !== 'norms') {
    for (const key of ['eps1', 'eps2']) {
      drawing.append(svg('path', { class: 'axis', fill: 'none', d: path(lines.map((i) => {
        const value = thresholds(i)[key];
        return [x(run.lines.round[i]), value === null ? null : y(Math.min(value, highest))];
      })) }));
    }
  }
  const marks = svg('g', { 'pointer-events': 'none' });
  drawing.append(marks);
  box.mark = () => marks.replaceChildren(...normMarks(lines, { x, y, left, right, top, bottom, highest }));
  box.mark();
  return overRounds(drawing, { label: `Decisions of cluster ${name} by round`, rounds, x, top, bottom,
    describe: (round) => decisionText(lines[rounds.indexOf(round)]) });
}

function normMarks(lines, { x, y, left, right, top, bottom, highest }) {
  const parts = [];
  let last = Infinity;
  for (const [symbol, value] of [['ε1', state.eps1], ['ε2', state.eps2]]) {
    const at = y(Math.min(value, highest));
    const text = Math.abs(at - last) < 13 ? last - 13 : at;
    last = at;
    parts.push(svg('line', { x1: left, x2: right, y1: at, y2: at, stroke: 'var(--ink)', 'stroke-dasharray': '7 4' }),
      svg('text', { x: right + 4, y: Math.max(text, top) + 4, class: 'strong' }, `${symbol} ${figure(value)}${value > highest ? ' ↑' : ''}`));
  }
  let first = true;
  for (const i of lines) {
    const answer = passes(i, state.eps1, state.eps2);
    if (answer === 'no') continue;
    const at = x(run.lines.round[i]);
    if (first) parts.push(svg('line', { x1: at, x2: at, y1: top, y2: bottom, stroke: 'var(--ink)', 'stroke-width': 1.2 }));
    first = false;
    parts.push(svg('path', { d: diamond(at, top - 8, 6), stroke: 'var(--ink)', 'stroke-width': 1.4,
      fill: answer === 'yes' ? 'var(--ink)' : 'var(--card)' }));
  }
  return parts;
}

function decisionText(i) {
  const { round, cluster, outcome, reason, sentences, mean, max, alpha, heard, members, figures } = run.lines;
  const others = Object.entries(figures[i] || {}).map(([key, value]) => `${key} ${
    typeof value === 'number' ? figure(value) : value}`);
  return [`Round ${round[i]}, cluster ${cluster[i]}: ${outcome[i]}`, sentences[reason[i]],
    `mean norm ${figure(mean[i])}, largest ${figure(max[i])}${alpha[i] === null ? '' : `, α_cross ${figure(alpha[i])}`}`,
    others.join(', '), heard[i] < members[i] ? `${heard[i]} of ${members[i]} members heard from` : '',
  ].filter(Boolean).join('\n');
}

// What another criterion went by, where its decisions carry figures of their own: shares and cosines,
// with a dotted line for what each has to exceed.
const figureKeys = (i) => Object.keys(run.lines.figures[i] || {}).filter((key) =>
  !key.endsWith('_needed') && !key.startsWith('eps') && typeof run.lines.figures[i][key] === 'number');

function figurePicture(name, lines, rounds, width) {
  const of = (key) => lines.map((i) => (run.lines.figures[i] || {})[key] ?? null);
  const keys = [...new Set(lines.flatMap(figureKeys))].filter((key) => Math.max(...of(key)) <= 1.5);
  const [height, left, right, top] = [170, 32, width - 56, 12];
  const bottom = height - 22 - 16 * Math.ceil(keys.length / 3);
  const span = [rounds[0], Math.max(rounds[rounds.length - 1], rounds[0] + 1)];
  const x = scale(span[0] - 0.5, span[1] + 0.5, left, right);
  const low = Math.min(0, ...keys.flatMap(of).filter((v) => v !== null));
  const y = scale(low, Math.max(1, ...keys.flatMap(of)), bottom, top);
  const drawing = svg('svg', { width, height });
  drawing.append(axes({ x, y, rounds: span, values: ticks(low, 1, 4), left, right, bottom }));
  const line = (key, color, dash) => svg('path', { fill: 'none', stroke: color, 'stroke-width': 2, 'stroke-dasharray': dash,
    d: path(of(key).map((value, k) => [x(rounds[k]), value === null ? null : y(value)])) });
  keys.forEach((key, k) => {
    const color = `var(--c${k % 6})`;
    const [at, row] = [left + ((k % 3) * (right - left)) / 3, bottom + 34 + 16 * Math.floor(k / 3)];
    drawing.append(line(key, color, null), line(`${key}_needed`, color, '2 3'),
      svg('line', { x1: at, x2: at + 14, y1: row - 4, y2: row - 4, stroke: color, 'stroke-width': 3 }),
      svg('text', { x: at + 18, y: row }, key.replaceAll('_', ' ').slice(0, 14)));
  });
  return overRounds(drawing, { label: `What the criterion went by in cluster ${name}`, rounds, x, top, bottom,
    describe: (round) => decisionText(lines[rounds.indexOf(round)]) });
}
