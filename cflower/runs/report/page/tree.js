// The cluster tree over the rounds
//
// Each cluster is a band from the round it was born to the round it was split, or to the last one.
function drawTree() {
  if (!run.clusters.length) return fill('tree', note('No round is finished yet.'));
  fill('tree', picture('tree', treePicture, { class: 'chart' }));
  const splits = run.clusters.filter((cluster) => cluster.split && cluster.children.length)
    .sort((a, b) => a.split - b.split);
  if (!splits.length) return fill('splits', note('No cluster was split.'));
  const list = html('ul', { class: 'note' }, splits.map((cluster) => html('li', {}, splitText(cluster))));
  return fill('splits', splits.length <= 6 ? list : html('details', {}, html('summary', {}, `All ${splits.length} splits`), list));
}

function splitText(cluster) {
  const i = look.lines.get(cluster.name)?.find((line) => run.lines.round[line] === cluster.split);
  const parts = cluster.children.map((child) => `${child} (${counted(look.clusters.get(child).members.length, 'client')})`);
  return `Round ${cluster.split}: cluster ${cluster.name} into ${listed(parts)}${
    i === undefined ? '' : `. Why: ${run.lines.sentences[run.lines.reason[i]]}`}.`;
}

// Leaves lie below each other; a cluster that was split lies in the middle of its children, as high
// as all of them together, and flows into them.
function treePlaces(height, top) {
  const { leaves, clusters } = look;
  const clients = leaves.reduce((sum, name) => sum + clusters.get(name).members.length, 0) || 1;
  const gap = Math.min(14, (height * 0.3) / leaves.length);
  const unit = (height - gap * (leaves.length - 1)) / clients;
  const place = new Map();
  let y = top;
  for (const name of leaves) {
    const tall = clusters.get(name).members.length * unit;
    place.set(name, { y, tall });
    y += tall + gap;
  }
  const settle = (name) => {
    const children = clusters.get(name).children.filter((child) => clusters.has(child));
    if (!children.length) return place.get(name);
    const boxes = children.map(settle);
    const tall = boxes.reduce((sum, box) => sum + box.tall, 0);
    const middle = (Math.min(...boxes.map((box) => box.y)) + Math.max(...boxes.map((box) => box.y + box.tall))) / 2;
    place.set(name, { y: middle - tall / 2, tall });
    return place.get(name);
  };
  const inner = new Set(run.clusters.flatMap((cluster) => cluster.children));
  for (const name of clusters.keys()) if (!inner.has(name)) settle(name);
  return place;
}

function treePicture(width) {
  const { leaves, clusters } = look;
  const clients = leaves.reduce((sum, name) => sum + clusters.get(name).members.length, 0) || 1;
  const height = Math.max(150, Math.min(460, 34 * leaves.length, 40 + clients * 26));
  const [start, end, top] = [10, width - 12, 8];
  const place = treePlaces(height, top);
  // Children of a split in the very last round need some room too.
  const last = Math.max(run.run.planned, 1 + Math.max(...run.clusters.map((cluster) => cluster.born)));
  const x = scale(0, last, start, end);
  const flow = Math.min(28, (x(1) - x(0)) * 0.9);
  const drawing = svg('svg', { width, height: height + 40, role: 'group', 'aria-label': treeText() });
  const labels = [];
  for (const cluster of run.clusters) {
    const box = place.get(cluster.name);
    const to = x(cluster.children.length ? cluster.split ?? cluster.born : Math.max(run.run.rounds, cluster.born + 1));
    const from = Math.min(x(cluster.born) + (cluster.born ? flow : 0), to - 2);
    const faint = !isWithin(cluster.name) || (state.client !== null && !isMember(state.client, cluster.name));
    const text = `Cluster ${cluster.name}: ${counted(cluster.members.length, 'client')}, from round ${cluster.born + 1}${
      cluster.children.length ? ` to ${cluster.split}` : ''}\n${listed(cluster.members.map(clientName), 12)}`;
    const band = svg('rect', { 'data-key': `tree:${cluster.name}`, class: 'band', x: from, y: box.y, rx: 3,
      fill: colorOf(cluster.name), width: to - from, height: Math.max(box.tall, 1), 'fill-opacity': (cluster.children.length ? 0.45 : 1) * (faint ? 0.3 : 1),
      role: 'button', tabindex: 0, 'aria-label': text, 'aria-pressed': String(state.cluster === cluster.name),
      onclick: () => toggle('cluster', cluster.name),
      onkeydown: (event) => {
        if (event.key !== 'Enter' && event.key !== ' ') return;
        event.preventDefault();
        toggle('cluster', cluster.name);
      } });
    drawing.append(tellable(band, text));
    let offset = box.y;
    for (const child of cluster.children.filter((name) => cluster.split && place.has(name))) {
      const { y: low, tall } = place.get(child);
      const middle = to + flow / 2;
      drawing.append(svg('path', { fill: colorOf(child), 'fill-opacity': faint ? 0.15 : 0.5,
        d: `M${to} ${offset}C${middle} ${offset} ${middle} ${low} ${to + flow} ${low}v${tall}`
          + `C${middle} ${low + tall} ${middle} ${offset + tall} ${to} ${offset + tall}Z` }));
      offset += tall;
    }
    if (cluster.split && cluster.children.length) {
      labels.push(tellable(svg('path', { d: diamond(to, box.y + box.tall / 2, 7), fill: 'var(--ink)', stroke: 'var(--card)',
        'stroke-width': 2, onclick: () => pick({ cluster: cluster.name, round: cluster.split }) }), splitText(cluster)));
    }
    const name = `${cluster.name} · ${cluster.members.length}`;
    if (box.tall >= 13 && to - from > name.length * 8 + 8) {
      const middle = box.y + box.tall / 2;
      const tall = Math.min(18, box.tall - 2);
      labels.push(svg('g', { 'pointer-events': 'none' },
        svg('rect', { x: from + 5, y: middle - tall / 2, width: name.length * 6.6 + 10, height: tall, rx: 5, fill: 'var(--card)' }),
        svg('text', { x: from + 10, y: middle + 4, class: 'strong' }, name)));
    }
  }
  drawing.append(...labels);
  const bottom = height + top + 4;
  drawing.append(axes({ x, rounds: [0, run.run.planned], left: start, right: end, bottom }));
  if (state.round !== null) drawing.append(svg('line', { class: 'picked', x1: x(state.round), x2: x(state.round), y1: 0, y2: bottom }));
  return drawing;
}

const treeText = () => `Tree of ${counted(run.clusters.length, 'cluster')} over ${
  counted(run.run.rounds, 'round')}; ${look.leaves.length} at the end: ${
  listed(look.leaves.map((name) => `${name} with ${counted(look.clusters.get(name).members.length, 'client')}`), 12)}.`;
