// What the clients' data look like
//
// Known only in simulation, where the data are dealt out by the run itself; a real client's examples
// never leave it.
function drawData() {
  if (!run.data) {
    return fill('data', html('p', { class: 'note' },
      'Not known to this run: only a simulation tells what its clients’ data look like. A real client’s examples never leave it.'));
  }
  const order = run.clients.map((_, i) => i).sort((a, b) => natural.compare(look.home[a] ?? '', look.home[b] ?? '') || a - b);
  const cards = order.slice(0, state.cards).map(dataCard);
  const parts = [html('p', { class: 'hint' }, `Examples per class (${listed(run.data.classes, 12)}) and a few of them, by cluster.`),
    html('div', { class: 'cards' }, cards)];
  if (order.length > state.cards) {
    parts.push(html('button', { type: 'button', class: 'more', onclick: () => {
      state.cards += 24;
      drawData();
    } }, `Show 24 more of ${order.length} clients`));
  }
  return fill('data', parts);
}

function dataCard(i) {
  const counts = run.data.counts[i];
  const sample = run.data.samples[i];
  const labels = sample ? sample.labels.map((label) => run.data.classes[label] ?? label).join(', ') : '';
  const group = run.clients[i].group;
  return html('div', { class: 'card' },
    html('h3', {}, swatch(colorOf(look.home[i])), ` ${clientName(i)} `,
      html('small', {}, `${look.home[i] ?? '–'}${group === null || group === undefined ? '' : ` · group ${group}`}`)),
    counts ? histogram(counts, colorOf(look.home[i])) : null,
    sample ? tellable(html('img', { src: sample.sheet, alt: `Samples labelled ${labels}` }), `labelled ${labels}`) : null);
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
