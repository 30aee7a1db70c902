// Which layers clusters share
//
// A row for each leaf: on the left its layers below the output layer, one block for all clusters that
// have the same, on the right its output layer. Nothing is drawn where no two clusters share layers.
function drawLayers() {
  if (!run.bodies.some((leaves) => leaves.length > 1)) return fill('layers');
  const hint = 'Data go from left to right. A grey block is shared: the clients of all clusters beside it train it together. A coloured block is a cluster’s own.';
  return fill('layers', html('h3', {}, 'Which layers do the clusters share?'), html('p', { class: 'hint' }, hint),
    picture('layers', layersPicture, { class: 'chart' }));
}

const clientsOf = (leaves) => leaves.reduce((sum, name) => sum + look.clusters.get(name).members.length, 0);

function layersPicture(width) {
  const [row, gap, top] = [run.bodies.flat().length > 24 ? 20 : 28, 10, 22];
  const [middle, start] = [Math.round(width / 2), Math.round(width / 2) + 26];
  const words = run.bodies.map((leaves) => `${listed(leaves, 12)}: layers below the output layer ${leaves.length > 1 ? 'shared' : 'of its own'}`);
  const drawing = svg('svg', { width, height: top + row * run.bodies.flat().length + gap * (run.bodies.length - 1), role: 'group',
    'aria-label': `Layers by cluster. ${words.join('; ')}. Each cluster has an output layer of its own.` });
  drawing.append(svg('text', { x: 0, y: 13 }, 'all other layers'), svg('text', { x: start, y: 13 }, 'output layer'));
  let y = top;
  for (const leaves of run.bodies) {
    const [shared, tall] = [leaves.length > 1, row * leaves.length - 4];
    const faint = !leaves.some(isWithin);
    drawing.append(svg('rect', { class: 'body', x: 0, y, width: middle, height: tall, rx: 5, 'fill-opacity': (shared ? 0.45 : 1) * (faint ? 0.3 : 1), fill: shared ? 'var(--inner)' : colorOf(leaves[0]) }));
    const text = `${shared ? 'shared' : 'own'} · ${counted(clientsOf(leaves), 'client')}`;
    drawing.append(labelAt(text, middle / 2, y + tall / 2, row));
    leaves.forEach((name, k) => {
      const at = y + row * k;
      const high = row - 4;
      const label = `Cluster ${name}: an output layer of its own, trained by ${counted(clientsOf([name]), 'client')}; the layers below it ${
        shared ? `shared with ${listed(leaves.filter((other) => other !== name), 12)}` : 'are its own, too'}`;
      const own = svg('rect', { class: 'band', 'data-key': `layers:${name}`, x: start, y: at, width: width - start, height: high, rx: 5, fill: colorOf(name),
        'fill-opacity': isWithin(name) ? 1 : 0.3, role: 'button', tabindex: 0, 'aria-label': label, 'aria-pressed': String(state.cluster === name),
        onclick: () => toggle('cluster', name), onkeydown: onEnter(() => toggle('cluster', name)) });
      drawing.append(svg('path', { class: 'axis', fill: 'none', d: `M${middle + 4} ${at + high / 2}H${start - 6}m-5 -4l5 4l-5 4` }), withTip(own, label),
        labelAt(`${name} · ${counted(clientsOf([name]), 'client')}`, (start + width) / 2, at + high / 2, row));
    });
    y += row * leaves.length + gap;
  }
  return drawing;
}

// Words on a block, on paper of their own.
function labelAt(text, x, y, row) {
  const [wide, tall] = [text.length * 6.6 + 10, Math.min(18, row - 8)];
  return svg('g', { 'pointer-events': 'none' }, svg('rect', { x: x - wide / 2, y: y - tall / 2, width: wide, height: tall, rx: 5, fill: 'var(--card)' }),
    svg('text', { x, y: y + 4, 'text-anchor': 'middle', class: 'strong' }, text));
}
