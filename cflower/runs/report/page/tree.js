// The cluster tree over the rounds
//
// Each cluster is a band from the round it was born to the round it was split, or to the last one.
function drawTree() {
  if (!run.clusters.length) return fill('tree', html('p', { class: 'note' }, 'No round is finished yet.'));
  fill('tree', picture(treePicture, { class: 'chart' }));
  const splits = run.clusters.filter((cluster) => cluster.split && cluster.children.length)
    .sort((a, b) => a.split - b.split);
  const items = splits.map((cluster) => html('li', {}, splitText(cluster)));
  if (!items.length) {
    return fill('splits', html('p', { class: 'note' }, 'No cluster was split.'));
  }
  const list = html('ul', { class: 'note' }, items);
  return fill('splits', items.length <= 6 ? list
    : html('details', {}, html('summary', {}, `All ${items.length} splits`), list));
}

function splitText(cluster) {
  const i = look.lines.get(cluster.name)?.find((line) => run.lines.round[line] === cluster.split);
  const parts = cluster.children.map((child) => `${child} (${look.clusters.get(child).members.length})`);
  const figures = i === undefined ? '' : `: mean norm ${figure(run.lines.mean[i])}, largest ${
    figure(run.lines.max[i])}, largest similarity across the sides ${figure(run.lines.alpha[i])}`;
  return `Round ${cluster.split}: cluster ${cluster.name} into ${listed(parts)}${figures}.`;
}

// Leaves lie below each other; a cluster that was split lies in the middle of its children, as high
// as all of them together, and flows into them.
function treePicture(width) {
  const { leaves, clusters } = look;
  const clients = leaves.reduce((sum, name) => sum + clusters.get(name).members.length, 0) || 1;
  const height = Math.max(150, Math.min(460, 34 * leaves.length, 40 + clients * 26));
  const gap = Math.min(14, (height * 0.3) / leaves.length);
  const unit = (height - gap * (leaves.length - 1)) / clients;
  const [left, right, top] = [10, width - 12, 8];
  const x = scale(0, Math.max(run.run.planned, 1), left, right);
  const place = new Map();
  let y = top;
  for (const name of leaves) {
    const tall = clusters.get(name).members.length * unit;
    place.set(name, { y, tall });
    y += tall + gap;
  }
  const settle = (name) => {
    const children = look.children.get(name).filter((child) => clusters.has(child));
    if (!children.length) return place.get(name);
    const boxes = children.map(settle);
    const tall = boxes.reduce((sum, box) => sum + box.tall, 0);
    const middle = (Math.min(...boxes.map((box) => box.y)) + Math.max(...boxes.map((box) => box.y + box.tall))) / 2;
    place.set(name, { y: middle - tall / 2, tall });
    return place.get(name);
  };
  const all = [...clusters.keys()];
  const roots = all.filter((name) => !all.some((other) => look.children.get(other).includes(name)));
  roots.forEach(settle);

  const drawing = svg('svg', { width, height: height + 40, role: 'img', 'aria-label': treeText() });
  const flow = Math.min(28, (x(1) - x(0)) * 0.9 + 6);
  const labels = [];
  for (const cluster of run.clusters) {
    const box = place.get(cluster.name);
    const end = cluster.children.length ? cluster.split ?? cluster.born : run.run.rounds;
    const [from, to] = [x(cluster.born) + (cluster.born ? flow : 0), x(end)];
    const color = colorOf(cluster.name);
    const text = `Cluster ${cluster.name}: ${counted(cluster.members.length, 'client')}, rounds ${
      cluster.born + 1} to ${end}\n${listed(cluster.members.map(clientName), 12)}`;
    drawing.append(tellable(svg('rect', { x: Math.min(from, to), y: box.y, rx: 3, fill: color,
      width: Math.max(to - from, 2), height: Math.max(box.tall, 1),
      'fill-opacity': cluster.children.length ? 0.35 : 1 }), text));
    let offset = box.y;
    for (const child of cluster.children.filter((name) => cluster.split && place.has(name))) {
      const { y: low, tall } = place.get(child);
      const middle = x(end) + flow / 2;
      drawing.append(svg('path', { fill: colorOf(child), 'fill-opacity': 0.5,
        d: `M${x(end)} ${offset}C${middle} ${offset} ${middle} ${low} ${x(end) + flow} ${low}v${tall}`
          + `C${middle} ${low + tall} ${middle} ${offset + tall} ${x(end)} ${offset + tall}Z` }));
      offset += tall;
    }
    if (cluster.split && cluster.children.length) {
      labels.push(tellable(svg('path', { d: diamond(x(end), box.y + box.tall / 2, 7),
        fill: 'var(--ink)', stroke: 'var(--card)', 'stroke-width': 2 }), splitText(cluster)));
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
  drawing.append(axes({ x, y: null, rounds: [0, run.run.planned], values: [], left, right, bottom }));
  return drawing;
}

const treeText = () => `Tree of ${counted(run.clusters.length, 'cluster')} over ${
  counted(run.run.rounds, 'round')}; ${look.leaves.length} at the end: ${
  listed(look.leaves.map((name) => `${name} with ${counted(look.clusters.get(name).members.length, 'client')}`), 12)}.`;
