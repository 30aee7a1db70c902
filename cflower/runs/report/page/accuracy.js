// Accuracy per client
function drawAccuracy() {
  if (!run.accuracies.some((values) => values.some((value) => value !== null))) {
    fill('accuracy-picker');
    return fill('accuracy', html('p', { class: 'note' }, 'The clients reported no accuracy.'));
  }
  const options = run.clients.map((client, i) => html('option', { value: i }, client.name));
  const picker = html('select', { id: 'client', onchange: () => {
    state.client = picker.value;
    chart.redraw(true);
  } }, html('option', { value: '' }, 'nobody'), options);
  picker.value = state.client;
  fill('accuracy-picker', html('p', { class: 'hint' }, html('label', { for: 'client' }, 'Bring out one client: '), picker));
  const chart = picture(accuracyPicture, { class: 'chart' });
  return fill('accuracy', chart);
}

// Up to `CROWD` clients have a line each; more are drawn as bands, one a cluster: all of its clients,
// and the middle 80 % of them. With very many clusters too, it is one band for all with the median.
const CROWD = 80;
const MOST_BANDS = 12;

function bands(x, y) {
  const parts = [];
  const groups = look.leaves.length <= MOST_BANDS ? look.leaves : [null];
  for (const name of groups) {
    const mine = run.accuracies.filter((_, i) => name === null || look.home[i] === name);
    const rounds = [];
    for (let round = 0; round < run.run.rounds; round += 1) {
      const values = mine.map((told) => told[round]).filter((v) => v !== null).sort((a, b) => a - b);
      if (values.length) rounds.push([round + 1, (share) => values[Math.round((values.length - 1) * share)] / 10000]);
    }
    for (const [low, high, opacity] of [[0, 1, 0.12], [0.1, 0.9, 0.22]]) {
      const upper = rounds.map(([round, at]) => [x(round), y(at(high))]);
      const lower = rounds.map(([round, at]) => [x(round), y(at(low))]).reverse();
      parts.push(svg('path', { d: `${path([...upper, ...lower])}Z`, fill: colorOf(name), 'fill-opacity': opacity }));
    }
    if (name === null) {
      parts.push(svg('path', { d: path(rounds.map(([round, at]) => [x(round), y(at(0.5))])), fill: 'none',
        stroke: 'var(--ink)', 'stroke-width': 2 }));
    }
  }
  return svg('g', {}, parts);
}
const clusterMeans = () => new Map([...look.lines].map(([name, lines]) => [name, lines
  .filter((i) => run.lines.accuracy[i] !== null).map((i) => [run.lines.round[i], run.lines.accuracy[i]])]));

function accuracyPicture(width) {
  const height = Math.max(260, Math.min(400, width * 0.5));
  const [left, right, top, bottom] = [46, width - 16, 14, height - 24];
  const rounds = Array.from({ length: run.run.rounds }, (_, i) => i + 1);
  const x = scale(1, Math.max(run.run.rounds, 2), left, right);
  let low = 10000;
  for (const values of run.accuracies) for (const v of values) if (v !== null && v < low) low = v;
  const federated = run.run.metrics.fl_accuracy ?? null;
  const picked = state.client === '' ? null : Number(state.client);
  low = Math.max(0, Math.floor((low / 10000) * 10 - 0.2) / 10);
  const y = scale(low, 1, bottom, top);
  const drawing = svg('svg', { width, height });
  drawing.append(axes({ x, y, rounds: [1, Math.max(run.run.rounds, 2)], values: ticks(low, 1, 5), left, right, top, bottom,
    name: (value) => percent(value, 0) }));
  for (const split of run.clusters.filter((cluster) => cluster.split && cluster.children.length)) {
    drawing.append(svg('line', { x1: x(split.split), x2: x(split.split), y1: top, y2: bottom, class: 'axis',
      'stroke-dasharray': '2 3' }),
    svg('path', { d: diamond(x(split.split), bottom, 5), fill: 'var(--ink)' }));
  }
  const crowd = run.clients.length > CROWD;
  if (crowd) drawing.append(bands(x, y));
  const thin = Math.max(0.12, Math.min(0.5, 12 / run.clients.length));
  const points = (values) => values.map((v, i) => [x(i + 1), v === null ? null : y(v / 10000)]);
  const join = (values) => points(values).filter((point) => point[1] !== null);
  run.accuracies.forEach((values, i) => {
    if (crowd || i === picked) return;
    drawing.append(svg('path', { d: path(join(values)), fill: 'none', stroke: colorOf(look.home[i]),
      'stroke-width': 1, 'stroke-opacity': picked === null ? thin : thin / 2 }));
  });
  if (look.lines.size <= 60) {
    for (const [name, values] of clusterMeans()) {
      const d = path(values.map(([round, value]) => [x(round), y(value)]));
      drawing.append(svg('path', { d, fill: 'none', stroke: 'var(--card)', 'stroke-width': 5 }),
        svg('path', { d, fill: 'none', stroke: colorOf(name), 'stroke-width': 2.6, 'stroke-dasharray': dashOf(name),
          'stroke-opacity': picked === null ? 1 : 0.35 }));
    }
  }
  const baseline = picked === null ? federated : run.clients[picked].federated;
  if (baseline !== null && baseline !== undefined) {
    const whose = picked === null ? 'FL model, all clients' : `FL model, ${clientName(picked)}`;
    drawing.append(svg('line', { x1: left, x2: right, y1: y(baseline), y2: y(baseline), stroke: 'var(--ink)',
      'stroke-width': 1.5, 'stroke-dasharray': '7 4' }),
    svg('text', { x: right - 4, y: y(baseline) + 16, 'text-anchor': 'end', class: 'strong halo' },
      `${whose.length > 40 ? `${whose.slice(0, 40)}…` : whose}: ${percent(baseline)}`));
  }
  if (picked !== null) {
    drawing.append(svg('path', { d: path(join(run.accuracies[picked])), fill: 'none',
      stroke: colorOf(look.home[picked]), 'stroke-width': 3 }));
  }
  return overRounds(drawing, { label: 'Accuracy by round', rounds, x, top, bottom,
    describe: (round, place) => accuracyText(round, place === null ? null : scale(bottom, top, low, 1)(place), picked) });
}

function accuracyText(round, near, picked) {
  const text = [`Round ${round}`];
  for (const [name, lines] of look.lines) {
    const i = lines.find((line) => run.lines.round[line] === round);
    if (i !== undefined && run.lines.accuracy[i] !== null && text.length < 9) {
      text.push(`cluster ${name}: ${percent(run.lines.accuracy[i])}`);
    }
  }
  let best = picked;
  if (best === null && near !== null) {
    let gap = Infinity;
    run.accuracies.forEach((values, i) => {
      const distance = values[round - 1] === null ? Infinity : Math.abs(values[round - 1] / 10000 - near);
      if (distance < gap) { gap = distance; best = i; }
    });
  }
  if (best !== null && run.accuracies[best][round - 1] !== null) {
    text.push(`${picked === null ? 'nearest: ' : ''}${clientName(best)}: ${percent(run.accuracies[best][round - 1] / 10000)}`);
  }
  return text.join('\n');
}
