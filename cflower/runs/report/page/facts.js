// The result, unusable replies and absences, the config
function drawFacts() {
  const about = run.run;
  byId('run-id').textContent = [...about.labels, about.id].filter((label) => label && label !== 'cflower').join(' · ');
  byId('finding').textContent = about.sentence;
  fill('remarks', marked(about.remarks));
  fill('details', folded('Details', html('ul', {}, about.details.map((text) => html('li', {}, marked(text))))));
  const means = about.ways.map(({ mean }) => mean).filter(known);
  const [least, most] = [Math.min(0, ...means), Math.max(0, ...means, metric().percent ? 1 : 0)];
  const at = (mean) => `${(100 * (mean - least)) / (most - least || 1)}%`;
  // A bar is as long as a share is large; of other metrics a dot lies where the value does, since the
  // longest bar of an error would look like the best.
  const track = (mean) => html('span', { class: 'track' }, metric().percent ? html('i', { class: 'bar', style: { width: at(mean) } }) : html('i', { class: 'dot', style: { left: at(mean) } }));
  fill('compared', about.ways.map(({ words, mean, value, remark, against }) => html('div', {}, html('dt', {}, words),
    html('dd', {}, known(mean) ? [html('strong', {}, value), metric().percent || means.length > 1 ? track(mean) : null] : html('span', {}, marked(remark))),
    known(mean) && remark ? html('dd', { class: 'even' }, capital(remark)) : null,
    against ? html('dd', { class: 'against' }, verdictIn(against.replaceAll(/-(?=\d)/g, '−'))) : null)));
  byId('compared-hint').textContent = about.ways.length ? `${about.pooled ? capital(metric().title) : `Mean ${metric().title}`} on held-out examples${about.pooled ? ', of all clients together' : ''}${metric().percent || means.length < 2 ? '' : `; the line goes from ${figure(least)} to ${figure(most)}, ${metric().higher_is_better ? 'right' : 'left'} is better`}. The standard deviation is that between clients.` : '';
  const gains = run.clients.map(gainOf).filter(known);
  const facts = about.finished ? [] : [`${counted(about.rounds, 'round')} of ${about.planned}`];
  if (gains.length && !about.ways.some(({ against }) => against)) {
    const [up, down] = [1, -1].map((sign) => gains.filter((gain) => sign * better(gain) > 0).length);
    facts.push(`${counted(up, 'client')} better than under the common model, ${down} worse`);
  }
  fill('facts', facts.map((text) => html('span', {}, text)));
}

// The verdict of a comparison stands out.
function verdictIn(text) {
  const [figures, verdict] = text.split(/: (?=[^:]*$)/);
  return verdict ? [`${figures}: `, html('strong', {}, verdict)] : text;
}

// The figures of all clients' held-out examples together, by class.
function drawTogether() {
  const { sentences, rows } = run.run.together;
  if (!rows.length) return fill('together');
  const heads = Object.keys(rows[0]);
  const cells = rows.map((row) => html('tr', {}, heads.map((head, i) => (i ? html('td', {}, row[head]) : html('th', { scope: 'row' }, row[head])))));
  return fill('together', html('h3', {}, 'All held-out examples together'), sentences.map((text) => html('p', {}, text)), table('Each class', heads, cells));
}

// The methods side by side, where `cflower try` or --baselines measured them, and what follows.
function drawMethods() {
  const { methods } = run.run;
  if (methods.length < 2) return fill('methods');
  const heads = Object.keys(methods[0]).filter((head) => methods.some((row) => row[head] !== '-'));
  const rows = methods.map((row) => html('tr', {}, heads.map((head, i) => (i ? html('td', {}, row[head]) : html('th', { scope: 'row' }, row[head])))));
  return fill('methods', html('h3', {}, 'Which method serves the clients best?'), table('Methods', heads, rows));
}

// Each client as a mark, for every way to serve them: how far the worst lie behind.
function drawEvenly() {
  const ways = run.run.ways.filter(({ key }) => run.clients.some((client) => known(client[key])));
  if (!ways.length || run.clients.length < 3) return fill('evenly');
  const hint = `Each mark is a client, by ${metric().name}; the dot is the median${metric().higher_is_better ? '' : '; left is better'}.`;
  return fill('evenly', html('h3', {}, 'How evenly are they served?'), html('p', { class: 'hint' }, hint),
    html('div', { class: 'panel' }, picture('evenly', (width) => evenPicture(ways, width))));
}

const medianOf = (sorted) => (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2;

function evenPicture(ways, width) {
  const values = ways.map(({ key }) => run.clients.map((client) => client[key]).filter(known).sort((a, b) => a - b));
  const [low, high] = [Math.min(...values.map((row) => row[0])), Math.max(...values.map((row) => row[row.length - 1]))];
  const [step, bottom] = [38, 38 * ways.length + 2];
  const x = scale(low, high === low ? low + 1 : high, 8, width - 8);
  const words = ways.map(({ key }, i) => {
    const [row, worst] = [values[i], metric().higher_is_better ? 0 : values[i].length - 1];
    return `${run.run.words[key]}: worst ${score(row[worst])}, median ${score(medianOf(row))}, best ${score(row[row.length - 1 - worst])}`;
  });
  const rows = ways.map((_, i) => {
    const y = step * i + 26;
    const marks = values[i].map((value) => svg('line', { class: 'mark', x1: x(value), x2: x(value), y1: y - 7, y2: y + 7 }));
    return [svg('line', { class: 'grid', x1: 8, x2: width - 8, y1: y, y2: y }), marks, svg('circle', { cx: x(medianOf(values[i])), cy: y, r: 4.5, class: 'middle' }),
      svg('text', { x: 8, y: y - 12 }, width < 360 ? words[i].replace(/, best.*/, '') : words[i])];
  });
  return svg('svg', { width, height: bottom, role: 'img', 'aria-label': words.join('; ') }, rows.flat(2));
}

// The time is that of the rounds; each training moves one model to a client and one back.
function drawCost() {
  const { seconds, trainings, bytes } = run.cost;
  const duration = (s) => (s < 120 ? `${figure(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);
  const size = (n) => { const i = Math.min(4, Math.floor(Math.log10(Math.max(1, n)) / 3)); return `${figure(n / 1000 ** i)} ${['B', 'kB', 'MB', 'GB', 'TB'][i]}`; };
  if (!run.run.rounds) return fill('cost', 'No round is finished yet.');
  return fill('cost', [`${duration(seconds)} in rounds (${duration(seconds / run.run.rounds)} each)`, `${counted(trainings, 'training')} by clients`,
    `${size(2 * trainings * bytes)} of models to clients and back for training (${size(bytes)} each)`].map((text) => html('span', {}, text)));
}

function spans(rounds) {
  const found = [];
  for (const round of rounds) {
    const last = found[found.length - 1];
    if (last && round === last[1] + 1) last[1] = round;
    else found.push([round, round]);
  }
  return listed(found.map(([from, to]) => (from === to ? String(from) : `${from}–${to}`)), 12);
}

function drawProblems() {
  const share = run.run.fractionTrain;
  const sampled = share < 1;
  const rows = run.problems.map(({ client, problem, rounds }) => [client, problem, rounds.length, spans(rounds)]);
  const unusable = new Map();
  for (const { client, rounds } of run.problems) unusable.set(client, (unusable.get(client) ?? 0) + rounds.length);
  run.heard.forEach(([heard, member], client) => {
    const missing = member - heard - (unusable.get(client) ?? 0);
    if (missing > 0 && !sampled) rows.push([client, 'took no part, or trained the model of another cluster', missing, '']);
  });
  rows.sort((a, b) => a[0] - b[0]);
  const notes = [];
  if (sampled) notes.push(note(`A share of ${share} of every cluster trains in a round, so a client without a reply is not absent.`));
  if (!rows.length) {
    notes.push(note(sampled ? 'Every reply was used.' : 'Every client sent a usable reply in every round.'));
    return fill('problems', notes);
  }
  return fill('problems', notes, folded(`Unusable replies and absences (${rows.length})`, table('Unusable replies and absences, by client', ['client', 'reply', 'times', 'rounds'], rows.map(([client, problem, times, when]) =>
    html('tr', {}, html('th', { scope: 'row' }, clientName(client)), html('td', { class: 'left wrap' }, problem),
      html('td', {}, String(times)), html('td', { class: 'left wrap' }, when))))));
}

const table = (label, heads, rows) => scrolling(label,
  html('thead', {}, html('tr', {}, heads.map((words) => html('th', { scope: 'col' }, words)))), html('tbody', {}, rows));

function drawConfig() {
  const keys = (entries) => html('dl', { class: 'keys' }, entries.map(([key, value]) =>
    html('div', {}, html('dt', {}, key), html('dd', {}, String(value)))));
  const pairs = (entries) => entries.map(({ key, value }) => [key, value]);
  fill('config', folded('The run config as it was given to the app', keys(pairs(run.config))),
    folded('Settings of the strategy and its criterion', keys(pairs(run.settings))), folded('Versions', keys(Object.entries(run.versions))));
}
