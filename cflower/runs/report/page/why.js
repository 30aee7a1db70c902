// Why the clusters changed, or stayed
//
// Each change is one sentence, that of the criterion or of the clients' judgement; its figures are
// folded below it. A cluster without a change has one line, with its earlier decisions folded.
function drawWhy() {
  byId('why-section').hidden = run.run.kind !== 'clustered';
  if (run.run.kind !== 'clustered') return null;
  if (!run.lines.round.length) return fill('why', note('No round is finished yet.'));
  const splits = run.clusters.filter((cluster) => cluster.split && cluster.children.length);
  const changes = [...splits.map((cluster) => [cluster.split, splitPanel(cluster)]), ...run.trials.map((trial) => [trial.round, trialPanel(trial)]), ...run.events.map((event) => [event.round, eventPanel(event)])]
    .sort((a, b) => a[0] - b[0]).map(([, panel]) => panel);
  const stayed = look.leaves.filter((name) => look.lines.has(name)).sort((a, b) => Number(b === state.cluster) - Number(a === state.cluster));
  const more = stayed.length > state.panels ? button(`Show 12 more of ${stayed.length} clusters`, () => {
    state.panels += 12;
    drawWhy();
  }, { class: 'more' }) : null;
  return fill('why', changes.length ? changes : note('No cluster was split.'), changes.length ? html('h3', {}, 'Why these clusters were not split further') : null,
    stayed.slice(0, state.panels).map(stayedPanel), more,
    personalPanel());
}

// What was opened stays open when the page is drawn anew or loaded again; so does the picked cluster.
const opened = new Set(history.state?.opened);
const panel = (name, summary, ...content) => html('details', { class: `change${name && state.cluster === name ? ' chosen' : ''}`, open: (name && state.cluster === name) || opened.has(summary),
  ontoggle: (event) => { opened[event.target.open ? 'add' : 'delete'](summary); history.replaceState({ opened: [...opened] }, ''); } }, html('summary', {}, name && swatch(colorOf(name)), summary), ...content);

function splitPanel(cluster) {
  const lines = look.lines.get(cluster.name) ?? [];
  const i = lines.find((line) => run.lines.round[line] === cluster.split);
  return panel(cluster.name, splitText(cluster), i === undefined ? null : [figuresOf(run.lines.figures[i], i), ...pastOf(cluster.name, lines)]);
}

// The results of the personal step, after the last round.
function personalPanel() {
  const steps = Object.entries(run.personal);
  const accepted = steps.filter(([, text]) => text.startsWith('personal step accepted')).length;
  return steps.length ? panel('', `After the last round, personal step: accepted in ${accepted} of ${counted(steps.length, 'cluster')}.`,
    html('ul', {}, steps.map(([name, text]) => html('li', {}, swatch(colorOf(name)), `Cluster ${name}, ${text}.`)))) : null;
}

// Newcomers, clusters opened for them, and moves: one sentence each, the clients folded.
const eventText = ({ round, sentence }) => `Round ${round}: ${sentence}.`;
const eventPanel = (event) => panel(event.cluster, eventText(event), html('ul', {}, event.clients.map((client) => {
  const move = event.kind === 'moved' ? run.moves.find((one) => one.client === client && one.round === event.round) : null;
  return html('li', { class: state.client === client ? 'chosen' : '' }, button(clientName(client), () => toggle('client', client), { class: 'plain', 'data-key': `event:${event.kind}:${event.round}:${client}` }), move ? `: ${move.reason}.` : ` is in ${look.home[client] ?? 'no cluster'} at the end.`);
})));
const trialPanel = (trial) => panel(trial.cluster, decisionText(trial), figuresOf(trial.figures));

function stayedPanel(name) {
  const lines = look.lines.get(name);
  const i = lines.find((line) => run.lines.round[line] === state.round) ?? lines[lines.length - 1];
  const { round, outcome, reason, sentences } = run.lines;
  return panel(name, decisionText({ round: round[i], cluster: name, outcome: outcome[i], reason: sentences[reason[i]] }),
    figuresOf(run.lines.figures[i], i), ...pastOf(name, lines));
}

// Every figure of one decision under the criterion's own name.
function figuresOf(given, i = null) {
  const norms = i === null ? [] : [['mean norm', run.lines.mean[i]], ['largest norm', run.lines.max[i]], ['alpha cross', run.lines.alpha[i]]];
  const all = [...norms, ...Object.entries(given ?? {})].filter(([, value]) => known(value));
  return all.length ? html('dl', { class: 'keys' }, all.map(([key, value]) => html('div', {}, html('dt', {}, key.replaceAll('_', ' ')), html('dd', {}, figure(value))))) : null;
}

// The norms with the thresholds, where the criterion has some, and rounds in a row with one outcome.
function pastOf(name, lines) {
  return [run.thresholds ? picture(`norms-${name}`, (width) => normPicture(name, lines, width)) : null, stretches(name, lines)];
}

function stretches(name, lines) {
  const { round, outcome, reason, sentences } = run.lines;
  const found = [];
  for (const i of lines) {
    const last = found[found.length - 1];
    if (last && outcome[last[1]] === outcome[i]) last[1] = i;
    else found.push([i, i]);
  }
  const items = found.map(([from, to]) => html('li', {}, button(from === to ? `Round ${round[from]}` : `Rounds ${round[from]}–${round[to]}`,
    () => toggle('round', round[to]), { class: 'plain', 'data-key': `stretch:${name}:${round[to]}` }), `, ${outcome[to]}: ${sentences[reason[to]]}.`));
  return html('ul', {}, items);
}

// The norms of one cluster over the rounds, and the thresholds of the criterion.
function normPicture(name, lines, width) {
  const height = 190;
  const [start, end, top, bottom] = [50, width - 56, 22, height - 20];
  const rounds = lines.map((i) => run.lines.round[i]);
  const limits = [['ε1', run.thresholds.eps1], ['ε2', run.thresholds.eps2]];
  const highest = Math.max(0.001, ...limits.map(([, value]) => value), ...lines.flatMap((i) => [run.lines.mean[i], run.lines.max[i]])) * 1.08;
  const span = [rounds[0], Math.max(rounds[rounds.length - 1], rounds[0] + 1)];
  const x = scale(span[0] - 0.5, span[1] + 0.5, start, end);
  const y = scale(0, highest, bottom, top);
  const color = colorOf(name);
  const drawing = svg('svg', { width, height });
  drawing.append(axes({ x, y, rounds: span, values: ticks(0, highest, 4), left: start, right: end, bottom }),
    svg('text', { x: start, y: 12 }, 'norm of the mean update (solid), largest norm of a client (dotted)'));
  for (const [column, dash] of [['max', '2 3'], ['mean', null]]) {
    const points = lines.map((i) => [x(run.lines.round[i]), run.lines[column][i] === null ? null : y(run.lines[column][i])]);
    drawing.append(svg('path', { fill: 'none', stroke: color, 'stroke-width': 2.2, 'stroke-dasharray': dash, d: path(points) }));
    if (points.length === 1) drawing.append(svg('circle', { cx: points[0][0], cy: points[0][1] ?? bottom, r: 3, fill: color }));
  }
  let last = Infinity;
  for (const [symbol, value] of limits) {
    const text = Math.abs(y(value) - last) < 13 ? last - 13 : y(value);
    last = y(value);
    drawing.append(svg('line', { x1: start, x2: end, y1: y(value), y2: y(value), stroke: 'var(--ink)', 'stroke-dasharray': '7 4' }),
      svg('text', { x: end + 4, y: text + 4, class: 'strong' }, `${symbol} ${figure(value)}`));
  }
  return overRounds(drawing, { key: `norms:${name}`, label: `Norms of cluster ${name} by round`, rounds, x, top, bottom, describe: (round) => {
    const i = lines[rounds.indexOf(round)];
    return `Round ${round}, ${run.lines.outcome[i]}: ${run.lines.sentences[run.lines.reason[i]]}\nmean norm ${figure(run.lines.mean[i])}, largest norm ${figure(run.lines.max[i])}`;
  } });
}
