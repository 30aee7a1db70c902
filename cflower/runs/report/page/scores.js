// How well the clients are served, over the rounds
//
// Up to `CROWD` clients have a line each. With more of them the first picture has the means of the
// clusters only, and below it each cluster has a picture of its own: the middle 80 % and the middle
// half of its clients, and their median. Beyond `MOST_BANDS` clusters it is one such picture for all.
// A second picture has the loss, where another metric leads: means of clusters, and the common model.
const CROWD = 40;
const MOST_BANDS = 12;

// What each picture draws: the clients' values, the column of the lines, the common model by round.
const charts = () => [
  ...(run.scores.some((values) => values.some(known)) ? [{ ...metric(), key: 'scores', scores: run.scores, own: run.clients.map(({ own }) => own ?? null), column: run.lines.score, common: run.common.score,
    end: wayOf('fl')?.mean ?? null, baselines: baselineCurves() }] : []),
  ...(metric().name !== 'loss' && run.lines.second.some(known) ? [{ name: 'loss', percent: false, key: 'second', scores: [], own: [], column: run.lines.second, common: run.common.second, end: null, baselines: [] }] : [])];
const shownIn = (chart) => (value, digits = 1) => (chart.percent ? percent(value, digits) : figure(value, 4));

function drawScores() {
  const all = charts();
  if (!all.length) {
    byId('scores-hint').textContent = '';
    return fill('scores', note(`The clients reported no ${metric().name}.`));
  }
  const crowd = run.clients.length > CROWD;
  const lines = crowd ? 'Lines are means of clusters. Below: the median of each cluster’s clients, their middle half and their middle 80 %.'
    : run.run.kind === 'clustered' ? 'Thin lines are clients, bold lines are means of clusters.' : 'Thin lines are clients.';
  byId('scores-hint').textContent = [run.run.evaluated ? 'Evaluated after each round on held-out examples, with the model of the client’s cluster. Metrics of the training replies are as the app measured them.'
    : 'From the replies to training: cflower’s own app evaluates the received model on held-out examples before it trains.', lines,
  known(run.run.firstSplit) ? 'Grey, dotted: the common model at the end.' : '', run.clients.some(({ share }) => known(share)) ? 'At the end the clients have their personal models.' : '',
  run.moves.length ? 'At the bottom, ◆ is a split and ● a move.' : ''].filter(Boolean).join(' ');
  const last = run.run.rounds;
  // To see what happens between 90 and 100 % one leaves out the rounds before.
  const starts = [...new Set([1, ...run.clusters.map((cluster) => cluster.born + 1), Math.ceil(last / 2)])].filter((round) => round < last).sort((a, b) => a - b);
  const from = /** @type {HTMLSelectElement} */ (html('select', { id: 'from', 'data-key': 'from', onchange: () => {
    state.from = Number(from.value);
    writeAddress();
    keepFocus(drawScores);
  } }, starts.map((round) => html('option', { value: round }, String(round)))));
  from.value = String(starts.includes(state.from) ? state.from : 1);
  const groups = !crowd || !run.scores.some((values) => values.some(known)) ? [] : look.leaves.length <= MOST_BANDS && run.run.kind === 'clustered' ? look.leaves : [null];
  return fill('scores', starts.length > 1 ? html('p', { class: 'choices' }, html('label', {}, 'Rounds from ', from)) : null,
    html('div', { class: 'charts' }, all.map((chart) => html('div', { class: 'chart' }, html('h3', {}, capital(chart.name)), picture(chart.name, (width) => scorePicture(chart, width))))),
    html('div', { class: 'panels' }, groups.map((name) => html('div', { class: `panel${name === state.cluster ? ' chosen' : ''}` },
      html('h3', {}, swatch(colorOf(name)), name === null ? 'All clients' : `Cluster ${name}`),
      picture(`${metric().name}-${name ?? 'all'}`, (width) => quantilePicture(name, width))))));
}

// Where the values lie; the last step is the evaluation at the end, if there was one.
function scoreFrame(chart, width, height, top = 14) {
  const ended = run.run.finished && chart.own.some(known);
  const tables = chart.scores.map((values, i) => (ended ? [...values, chart.own[i]] : values));
  const first = Math.max(1, Math.min(state.from, run.run.rounds - 1));
  const steps = Array.from({ length: run.run.rounds + (ended ? 1 : 0) }, (_, i) => i + 1).slice(first - 1);
  const late = chart.column.filter((_, i) => run.lines.round[i] >= first);
  let [low, high] = [Infinity, -Infinity];
  const others = chart.baselines.map(({ curve, value }) => [...curve.slice(first - 1), value]);
  for (const values of [...tables.map((one) => one.slice(first - 1)), late, chart.common.slice(first - 1), ...others]) {
    for (const v of values) if (known(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
  }
  if (chart.percent) [low, high] = [Math.max(0, Math.floor(low * 10 - 0.2) / 10), 1];
  const [start, end, bottom] = [46, width - 16, height - 24];
  const x = scale(first, Math.max(steps[steps.length - 1], first + 1), start, end);
  const y = scale(low, high, bottom, top);
  const back = axes({ x, y, rounds: [first, Math.max(run.run.rounds, first + 1)], values: ticks(low, high, 5), left: start, right: end, bottom, free: ended ? 40 : 0,
    name: (value) => shownIn(chart)(value, 0) });
  if (ended) {
    back.append(svg('text', { x: end, y: bottom + 15, 'text-anchor': 'end', class: 'halo' }, 'end'),
      svg('line', { class: 'grid', x1: end, x2: end, y1: top, y2: bottom }));
  }
  // What each client has from the first round shown on, as a line.
  const line = (values) => path(steps.map((step) => [x(step), values[step - 1]]).filter(([, v]) => known(v)).map(([at, v]) => [at, y(v)]));
  const within = (value) => value >= low && value <= high;
  return { tables, steps, first, x, y, start, end, top, bottom, line, within, back };
}

function clusterMeans(chart, steps) {
  const [first, last] = [steps[0], steps[steps.length - 1]];
  return [...look.lines].map(([name, lines]) => {
    const points = lines.filter((i) => known(chart.column[i]) && run.lines.round[i] >= first).map((i) => [run.lines.round[i], chart.column[i]]);
    const own = last > run.run.rounds && look.order.has(name) ? meanOf(name, 'own') : null;
    if (own !== null) points.push([last, own]);
    return [name, points];
  });
}

// The baselines that were measured, and the central evaluation, each with its line.
const DASHES = { federated: '7 4', isolated: '2 4', tuned: '7 3 2 3', clustered: '12 4', central: '8 3 2 3' };
const wayOf = (key) => run.run.ways.find((way) => way.key === key);
const baselineCurves = () => Object.entries(run.curves).map(([key, curve]) => ({ name: run.run.words[key] ?? 'central evaluation', curve, value: wayOf(key).mean,
  look: { stroke: 'var(--ink)', 'stroke-width': 1.8, 'stroke-dasharray': DASHES[key] ?? '9 3 1 3' } }));
const GREY = { stroke: 'var(--inner)', 'stroke-width': 2.6 };
const AT_END = { stroke: 'var(--inner)', 'stroke-dasharray': '2 4', 'stroke-width': 1.5 };
// The common model by round, from the first split on.
const commonOf = (chart) => chart.common.map((value, i) => (i + 1 >= (run.run.firstSplit ?? Infinity) ? value : null));

// The key above a picture: each line with its value at the end, in as many rows as it needs.
function keyRows(chart, width) {
  const shown = shownIn(chart);
  const names = chart.baselines.map(({ name, value, look: stroke }) => [`${name}: ${shown(value)}`, stroke]);
  if (known(chart.end)) names.push([`common model: ${shown(chart.end)}`, commonOf(chart).filter(known).length > 1 ? GREY : AT_END]);
  let [x, row] = [0, 0];
  return names.map(([text, stroke]) => {
    const wide = 54 + text.length * 7;
    if (x > 0 && x + wide > width) [x, row] = [0, row + 1];
    x += wide;
    return { text, stroke, x: x - wide, row };
  });
}

const stepName = (step) => (step > run.run.rounds ? 'At the end' : `Round ${step}`);

function scorePicture(chart, width) {
  const calm = state.client !== null && chart.scores.length > 0;
  const key = calm ? [] : keyRows(chart, width - 16);
  const room = key.length ? 16 * (key[key.length - 1].row + 1) : 0;
  const frame = scoreFrame(chart, width, room + (chart.scores.length ? Math.max(240, Math.min(380, width * 0.5)) : 220), room + 14);
  const { tables, steps, first, x, y, end, top, bottom, line, within } = frame;
  const shown = shownIn(chart);
  const drawing = svg('svg', { width, height: bottom + 24 });
  drawing.append(frame.back);
  for (const { text, stroke, x: at, row } of key) {
    drawing.append(svg('line', { x1: at + 8, x2: at + 34, y1: 8 + 16 * row, y2: 8 + 16 * row, ...stroke }),
      svg('text', { x: at + 40, y: 12 + 16 * row, class: 'strong' }, text));
  }
  for (const split of run.clusters.filter((cluster) => cluster.split >= first && cluster.children.length)) {
    drawing.append(svg('line', { x1: x(split.split), x2: x(split.split), y1: top, y2: bottom, class: 'axis', 'stroke-dasharray': '2 3' }),
      svg('path', { d: diamond(x(split.split), bottom, 5), fill: 'var(--ink)' }));
  }
  const thin = Math.max(0.15, Math.min(0.5, 12 / run.clients.length));
  for (const round of new Set(run.moves.map((move) => move.round).filter((round) => round >= first))) {
    drawing.append(svg('circle', { class: 'moved', cx: x(round), cy: bottom, r: 4.5, fill: 'var(--ink)', stroke: 'var(--card)', 'stroke-width': 1.5 }));
  }
  tables.forEach((values, i) => {
    if (run.clients.length > CROWD || i === state.client) return;
    const mine = isMember(i, state.cluster);
    drawing.append(svg('path', { d: line(values), fill: 'none', stroke: colorOf(look.home[i]), 'stroke-width': state.cluster && mine ? 1.6 : 1,
      'stroke-opacity': (calm ? thin / 2 : state.cluster && mine ? 0.7 : thin) * (mine ? 1 : 0.3) }));
  });
  // The common model after the split, if it was measured, and at the end.
  const shared = commonOf(chart);
  const common = steps.filter((step) => known(shared[step - 1])).map((step) => [x(step), y(shared[step - 1])]);
  if (common.length) {
    drawing.append(svg('path', { class: 'common', d: path(common), fill: 'none', ...GREY, 'stroke-opacity': calm ? 0.3 : 1 }));
  }
  if (known(chart.end) && within(chart.end)) {
    const [at] = common[common.length - 1] ?? [x(Math.max(first, run.run.firstSplit ?? first))];
    drawing.append(svg('line', { x1: at, x2: end, y1: y(chart.end), y2: y(chart.end), ...AT_END }));
  }
  const means = clusterMeans(chart, steps);
  if (means.length <= 60 && run.run.kind !== 'isolated') {
    for (const [name, values] of means) {
      const d = path(values.map(([step, value]) => [x(step), y(value)]));
      const faint = calm || !isWithin(name);
      drawing.append(svg('path', { d, fill: 'none', stroke: 'var(--card)', 'stroke-width': 5, 'stroke-opacity': faint ? 0 : 1 }),
        svg('path', { d, fill: 'none', stroke: colorOf(name), 'stroke-width': 2.6, 'stroke-opacity': faint ? 0.3 : 1 }));
    }
  }
  for (const { curve, value, look: stroke } of calm ? [] : chart.baselines) {
    const level = !curve.some(known);
    const points = steps.map((step) => [x(step), level || step > run.run.rounds ? value : curve[step - 1]]).filter(([, v]) => known(v) && (!level || within(v))).map(([at, v]) => [at, y(v)]);
    drawing.append(svg('path', { class: 'baseline', d: path(points), fill: 'none', ...stroke }));
  }
  const [compared, words] = other();
  const value = calm ? run.clients[state.client][compared] : null;
  if (known(value) && within(value)) {
    const label = `${words}, ${clientName(state.client)}`;
    drawing.append(svg('line', { x1: x(first), x2: end, y1: y(value), y2: y(value), stroke: 'var(--ink)', 'stroke-width': 1.5, 'stroke-dasharray': '2 4' }),
      svg('text', { x: end - 4, y: y(value) + 16 > bottom ? y(value) - 8 : y(value) + 16, 'text-anchor': 'end', class: 'strong halo' }, `${label.length > 70 ? `${label.slice(0, 70)}…` : label}: ${shown(value)}`));
  }
  if (calm) drawing.append(svg('path', { d: line(tables[state.client]), fill: 'none', stroke: colorOf(look.home[state.client]), 'stroke-width': 3 }));
  const nearest = (step, place) => {
    let [best, gap] = [null, Infinity];
    tables.forEach((values, i) => {
      const distance = known(values[step - 1]) ? Math.abs(y(values[step - 1]) - place) : Infinity;
      if (distance < gap) [best, gap] = [i, distance];
    });
    return [best, gap];
  };
  const describe = (step, place) => {
    const text = [stepName(step)];
    for (const [name, values] of means) {
      const found = values.find(([at]) => at === step);
      if (found && text.length < 9 && run.run.kind === 'clustered') text.push(`cluster ${name}: ${shown(found[1])}`);
    }
    if (common.length && known(chart.common[step - 1]) && step > run.run.firstSplit) text.push(`common model: ${shown(chart.common[step - 1])}`);
    for (const { name, value: atEnd, curve } of chart.baselines) {
      const found = step > run.run.rounds ? atEnd : curve[step - 1];
      if (known(found)) text.push(`${name}: ${shown(found)}`);
    }
    text.push(...run.moves.filter(({ round }) => round === step).slice(0, 3).map(({ client, to }) => `${clientName(client)} moved to ${to}`));
    const client = !tables.length ? null : state.client ?? (place ? nearest(step, place[1])[0] : null);
    if (client !== null && known(tables[client][step - 1])) {
      text.push(`${state.client === null ? 'nearest: ' : ''}${clientName(client)}: ${shown(tables[client][step - 1])}`);
    }
    return text.join('\n');
  };
  return overRounds(drawing, { key: chart.key, label: `${capital(chart.name)} by round`, rounds: steps, x, top, bottom, describe,
    // A click near a client's line picks the client, else the round; the end is no round.
    pick: (step, place) => {
      const [client, gap] = place ? nearest(step, place[1]) : [null, Infinity];
      if (client !== null && gap < 6 && run.clients.length <= CROWD) { toggle('client', client); return true; }
      return step > run.run.rounds;
    } });
}

function quantilePicture(name, width) {
  const { tables, steps, x, y, top, bottom, line, back } = scoreFrame(charts()[0], width, 190);
  const mine = tables.filter((_, i) => name === null || look.home[i] === name);
  const sorted = new Map(steps.map((step) => [step, mine.map((values) => values[step - 1]).filter(known).sort((a, b) => a - b)]));
  const at = (values, share) => values[Math.round((values.length - 1) * share)];
  const drawing = svg('svg', { width, height: bottom + 24 });
  drawing.append(back);
  const filled = steps.filter((step) => sorted.get(step).length);
  const edge = (share) => filled.map((step) => [x(step), y(at(sorted.get(step), share))]);
  const color = colorOf(name);
  for (const [low, high, opacity] of [[0.1, 0.9, 0.2], [0.25, 0.75, 0.35]]) {
    drawing.append(svg('path', { d: `${path([...edge(high), ...edge(low).reverse()])}Z`, fill: color, 'fill-opacity': opacity }));
  }
  drawing.append(svg('path', { d: path(edge(0.5)), fill: 'none', stroke: color, 'stroke-width': 2 }));
  if (state.client !== null && (name === null || look.home[state.client] === name)) {
    drawing.append(svg('path', { d: line(tables[state.client]), fill: 'none', stroke: 'var(--ink)', 'stroke-width': 2 }));
  }
  return overRounds(drawing, { key: `quantiles:${name}`, label: `Quantiles of ${name === null ? 'all clients' : `cluster ${name}`} by round`,
    rounds: filled, x, top, bottom, pick: (step) => step > run.run.rounds,
    describe: (step) => `${stepName(step)}, ${counted(sorted.get(step).length, 'client')}\n${
      [[0.9, '90 % are below'], [0.75, '75 % are below'], [0.5, 'median'], [0.25, '25 % are below'], [0.1, '10 % are below']]
        .map(([share, words]) => `${words}: ${score(at(sorted.get(step), share))}`).join('\n')}` });
}
