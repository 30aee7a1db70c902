// What the clients' data look like
//
// Known only in simulation, where the data are dealt out by the run itself; a real client's examples
// never leave it.
function drawData() {
  if (!run.data) {
    return fill('data', note('Not known to this run: only a simulation tells what its clients’ data look like. A real client’s examples never leave it.'));
  }
  const order = run.clients.map((_, i) => i).filter((i) => isMember(i, state.cluster))
    .sort((a, b) => Number(b === state.client) - Number(a === state.client)
      || natural.compare(look.home[a] ?? '', look.home[b] ?? '') || a - b);
  const parts = [html('p', { class: 'hint' }, `Examples per class (${listed(run.data.classes, 12)}), and a few of them with their labels${
    run.run.kind === 'clustered' ? ', by cluster' : ''}.`), html('div', { class: 'cards' }, order.slice(0, state.cards).map(dataCard))];
  if (order.length > state.cards) {
    parts.push(button(`Show 24 more of ${order.length} clients`, () => {
      state.cards += 24;
      drawData();
    }, { class: 'more' }));
  }
  return fill('data', parts);
}

function dataCard(i) {
  const counts = run.data.counts[i];
  const group = run.clients[i].group;
  const where = [run.run.kind === 'clustered' ? look.home[i] ?? '–' : null, known(group) ? `group ${group}` : null];
  return html('div', { class: `card${i === state.client ? ' chosen' : ''}` },
    html('h3', {}, swatch(colorOf(look.home[i])), button(clientName(i), () => toggle('client', i), { class: 'plain', 'data-key': `card:${i}` }),
      html('small', {}, where.filter(known).join(' · '))),
    counts ? histogram(counts, colorOf(look.home[i])) : null, samples(run.data.samples[i]));
}

// The sheet has the images below each other; every image is a window on it, with its label.
function samples(told) {
  if (!told) return null;
  const [height, width] = told.shape;
  const n = told.labels.length;
  return html('div', { class: 'samples' }, told.labels.map((label, k) => {
    const name = String(run.data.classes[label] ?? label);
    return html('figure', { class: 'sample' }, html('i', { role: 'img', 'aria-label': `An example labelled ${name}`, style: {
      aspectRatio: `${width} / ${height}`, backgroundImage: `url(${told.sheet})`, backgroundSize: `100% ${n * 100}%`,
      backgroundPosition: `0 ${n > 1 ? (k / (n - 1)) * 100 : 0}%` } }), html('figcaption', {}, name));
  }));
}

function histogram(counts, color) {
  const names = run.data.classes;
  const [width, height] = [220, 58];
  const most = Math.max(...counts, 1);
  const bar = width / counts.length;
  const drawing = svg('svg', { viewBox: `0 0 ${width} ${height}`, width: '100%', role: 'img',
    'aria-label': `Examples per class: ${counts.map((count, k) => `${names[k]}: ${count}`).join(', ')}` });
  counts.forEach((count, k) => {
    const tall = (count / most) * (height - 14);
    const column = svg('g', {},
      svg('rect', { x: k * bar, y: 0, width: bar, height: height - 12, fill: 'transparent' }),
      svg('rect', { x: k * bar + 1, y: height - 12 - tall, width: Math.max(bar - 2, 0.5), height: tall, fill: color, rx: 1 }));
    if (counts.length <= 16 && String(names[k]).length <= 3) {
      column.append(svg('text', { x: (k + 0.5) * bar, y: height - 2, 'text-anchor': 'middle', style: { fontSize: '9px' } }, String(names[k])));
    }
    drawing.append(tellable(column, `${names[k]}: ${count}`));
  });
  return drawing;
}
