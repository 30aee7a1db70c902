// The clients' data
//
// Known only in simulation, where the data are dealt out by the run itself; a real client's examples
// never leave it.
function drawData() {
  if (!run.data) {
    return fill('data', note('Not known: the clients of this run sent no previews of their data. In a simulation those of cflower’s own app do, where they predict classes.'));
  }
  const order = run.clients.map((_, i) => i).filter((i) => isMember(i, state.cluster))
    .sort((a, b) => Number(b === state.client) - Number(a === state.client)
      || natural.compare(look.home[a] ?? '', look.home[b] ?? '') || Number(known(run.data.samples[b])) - Number(known(run.data.samples[a])) || a - b);
  const cards = html('div', { class: 'cards' }, order.slice(0, state.cards).map(dataCard));
  const more = order.length > state.cards ? button(`Show ${Math.min(24, order.length - state.cards)} more of ${order.length} clients`, () => {
    state.cards += 24;
    drawData();
  }, { class: 'more' }) : null;
  const hint = html('p', { class: 'hint' }, `Examples per class (${listed(run.data.classes, 12)})${run.data.samples.some(known) ? ', and a few of them with their labels' : ''}${run.run.kind === 'clustered' ? ', by cluster' : ''}.`);
  const details = folded('Client by client', hint, cards, more);
  details.open = byId('data').querySelector('details')?.open ?? false;
  return fill('data', groupTable(), details);
}

// Which label of a cluster stands for which of the first one, where the examples look like that.
const matchesOf = (name) => new Map(run.data.matches[name] ?? []);
function labelTexts() {
  const all = Object.entries(run.data.matches);
  const pair = ([mine, theirs]) => `${run.data.classes[mine]} → ${run.data.classes[theirs]}`;
  return all.length ? [html('p', { class: 'labels' }, `Labels with another meaning, judged by the examples: what a cluster calls an example → what cluster ${look.leaves[0]} calls it.`),
    html('ul', { class: 'labels' }, all.map(([name, pairs]) => html('li', {}, swatch(colorOf(name)), ` ${name}: ${listed(pairs.map(pair), 10)}`)))] : [];
}

// Differences between the clusters: the share of each class in each of them, with one example. Where the
// shares are alike and the examples are not, the examples differ.
function groupTable() {
  if (run.run.kind !== 'clustered' || look.leaves.length < 2) return null;
  const clusters = look.leaves.filter((name) => look.clusters.get(name).members.length).slice(0, MOST_BANDS);
  const members = (name) => look.clusters.get(name).members.filter((i) => run.data.counts[i]);
  const shares = clusters.map((name) => {
    const sums = run.data.classes.map((_, k) => members(name).reduce((sum, i) => sum + (run.data.counts[i][k] ?? 0), 0));
    const all = sums.reduce((a, b) => a + b, 0) || 1;
    return sums.map((sum) => sum / all);
  });
  if (!shares.some((row) => row.some((share) => share > 0))) return null;
  // The classes whose shares differ most, where there is no room for all of them.
  const spread = (k) => Math.max(...shares.map((row) => row[k])) - Math.min(...shares.map((row) => row[k]));
  const classes = run.data.classes.map((_, k) => k).sort((a, b) => spread(b) - spread(a)).slice(0, MOST_CLASSES).sort((a, b) => a - b);
  const most = Math.max(...classes.map(spread));
  const most100 = Math.max(...shares.flat(), 1e-9);
  const text = most < 0.05 ? `Each class has about the same share in all clusters (at most ${(most * 100).toFixed(1)} points apart): what differs are the examples of a class, or what the labels mean`
    : `The shares of the classes differ by up to ${(most * 100).toFixed(0)} points`;
  const rows = clusters.map((name, row) => html('tr', { class: state.cluster === name ? 'chosen' : '' },
    html('th', { scope: 'row' }, swatch(colorOf(name)), ' ', button(name, () => toggle('cluster', name), { class: 'plain', 'data-key': `group:${name}` })),
    classes.map((k) => html('td', {}, exampleOf(name, k), html('span', { class: 'share' }, html('i', { class: 'bar', style: { width: `${(shares[row][k] / most100) * 34}px`, background: colorOf(name) } }), percent(shares[row][k], 0)), matchesOf(name).has(k) ? html('b', {}, `→ ${run.data.classes[matchesOf(name).get(k)]}`) : null))));
  return [...labelTexts(), html('p', { class: 'hint', id: 'groups-hint' }, `Share of each class${
    run.data.samples.some(known) ? ', and one example of it' : ''}${classes.length < run.data.classes.length ? `, of the ${classes.length} classes whose shares differ most` : ''}. ${text}.`),
  html('div', { id: 'groups' }, table('What differs between the clusters', ['cluster', ...classes.map((k) => String(run.data.classes[k]))], rows)),
  ...meanTable(clusters, classes)];
}
const MOST_CLASSES = 16;

// Of time series and tables: the mean example of each class, the clusters on top of each other; one row
// a channel, those in which the clusters differ most.
const MOST_CHANNELS = 6;

function meanTable(clusters, classes) {
  const means = run.data.means;
  const names = clusters.filter((name) => means?.[name]);
  if (names.length < 2) return [];
  const curves = (channel, k) => names.map((name) => [name, means[name][k]?.[channel]]).filter(([, curve]) => curve);
  const channels = Array.from({ length: Math.max(...names.flatMap((name) => means[name].map((one) => one?.length ?? 0))) }, (_, channel) => {
    const all = classes.flatMap((k) => curves(channel, k).flatMap(([, curve]) => curve));
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const gaps = classes.flatMap((k) => { const [one, two] = curves(channel, k); return two ? one[1].map((v, t) => Math.abs(v - two[1][t])) : []; });
    return { channel, low, high, gap: gaps.reduce((a, b) => a + b, 0) / (gaps.length || 1) / (high - low || 1) };
  }).sort((a, b) => b.gap - a.gap).slice(0, MOST_CHANNELS).sort((a, b) => a.channel - b.channel);
  const rows = channels.map(({ channel, low, high }) => html('tr', {}, html('th', { scope: 'row' }, channels.length > 1 ? `channel ${channel}` : 'mean'),
    classes.map((k) => html('td', {}, meanPicture(curves(channel, k), low, high, `Mean of ${run.data.classes[k]}, channel ${channel}`)))));
  return [html('p', { class: 'hint' }, 'The mean example of each class in each cluster, over its points; every row has one scale.',
    names.map((name) => [' ', swatch(colorOf(name)), ` ${name}`])), html('div', { id: 'means' }, table('Mean examples', ['', ...classes.map((k) => String(run.data.classes[k]))], rows))];
}

function meanPicture(curves, low, high, words) {
  const [width, height] = [110, 52];
  const y = scale(low, high, height - 3, 3);
  const drawing = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': words });
  if (low < 0 && high > 0) drawing.append(svg('line', { class: 'grid', x1: 0, x2: width, y1: y(0), y2: y(0) }));
  for (const [name, curve] of curves) {
    drawing.append(svg('path', { d: path(curve.map((value, t) => [scale(0, Math.max(1, curve.length - 1), 2, width - 2)(t), y(value)])), fill: 'none',
      stroke: colorOf(name), 'stroke-width': 2, 'stroke-opacity': isWithin(name) ? 1 : 0.25 }));
  }
  return drawing;
}

// An example with this label, of the first member that has one in its preview and has not moved since.
function exampleOf(cluster, label) {
  const moved = new Set(run.moves.map(({ client }) => client));
  for (const i of look.clusters.get(cluster).members.filter((client) => !moved.has(client))) {
    const sample = run.data.samples[i];
    const k = sample ? sample.labels.indexOf(label) : -1;
    if (k >= 0) return sampleImage(sample, k, `An example labelled ${run.data.classes[label]}, of cluster ${cluster}`);
  }
  return null;
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

// The sheet has the images below each other; every image is a window on it.
function sampleImage({ sheet, shape: [height, width], labels: { length: n } }, k, words) {
  return html('i', { class: 'image', role: 'img', 'aria-label': words, style: { aspectRatio: `${width} / ${height}`,
    backgroundImage: `url(${sheet})`, backgroundSize: `100% ${n * 100}%`, backgroundPosition: `0 ${n > 1 ? (k / (n - 1)) * 100 : 0}%` } });
}

function samples(sample) {
  if (!sample) return null;
  return html('div', { class: 'samples' }, sample.labels.map((label, k) => {
    const name = String(run.data.classes[label] ?? label);
    return html('figure', { class: 'sample' }, sampleImage(sample, k, `An example labelled ${name}`), html('figcaption', {}, name));
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
    drawing.append(withTip(column, `${names[k]}: ${count}`));
  });
  return drawing;
}
