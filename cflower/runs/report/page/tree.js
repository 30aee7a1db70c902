// The cluster tree over the rounds
//
// Each cluster is a band from the round it was born to the round it was split, or to the last one.
function drawTree() {
  if (run.run.kind !== 'clustered') { fill('tree-legend'); return fill('tree'); }
  if (!run.clusters.length) return fill('tree', note('No round is finished yet.'));
  fill('tree-legend', treeLegend());
  return fill('tree', picture('tree', treePicture, { class: 'chart' }));
}

// A decision in the words of the terminal's log; a split also names its parts.
const decisionText = ({ round, cluster, outcome, reason }) => `Round ${round}, cluster ${cluster}, ${outcome}${reason ? `: ${reason}` : ''}.`;

function splitText(cluster) {
  const i = look.lines.get(cluster.name)?.find((line) => run.lines.round[line] === cluster.split);
  const parts = childrenOf(cluster).map((child) => `${child} (${counted(sizesOf(child)[0][1], 'client')})`);
  const reason = i === undefined ? '' : run.lines.sentences[run.lines.reason[i]];
  return `${decisionText({ round: cluster.split, cluster: cluster.name, outcome: 'split', reason })} Parts: ${listed(parts)}.`;
}

// The children of its split; later ones are of clients that moved and resemble no other cluster.
const childrenOf = ({ split, children }) => children.filter((name) => look.clusters.get(name)?.born === split);

// How many placed members a cluster had, by round, where that changed: [from that round on, so many].
function sizesOf(name) {
  const { born, members } = look.clusters.get(name);
  const found = [];
  for (const i of look.lines.get(name) ?? []) {
    const placed = run.lines.members[i] - run.lines.unplaced[i];
    if (!found.length || found[found.length - 1][1] !== placed) found.push([found.length ? run.lines.round[i] - 1 : born, placed]);
  }
  return found.length ? found : [[born, members.length]];
}

// Leaves lie below each other, each as high as it has ever been; a cluster that was split lies in the
// middle of its children, and flows into those that its split made.
function treePlaces(height, top) {
  const { leaves, clusters } = look;
  const sizes = new Map([...clusters.keys()].map((name) => [name, sizesOf(name)]));
  const most = (name) => Math.max(...sizes.get(name).map(([, size]) => size));
  const gap = Math.min(run.moves.length ? 26 : 14, (height * 0.3) / leaves.length);
  const heights = [...leaves.map(most), ...(look.waiting.size ? [Math.max(...look.waiting.values())] : [])];
  const unit = (height - gap * (heights.length - 1)) / (heights.reduce((sum, size) => sum + size, 0) || 1);
  const place = new Map();
  let y = top;
  for (const name of leaves) {
    // With few of them each has room for its name.
    const tall = Math.max(most(name) * unit, leaves.length <= 12 ? 14 : 0);
    place.set(name, { middle: y + tall / 2, tall });
    y += tall + gap;
  }
  if (look.waiting.size) {
    const tall = Math.max(...look.waiting.values()) * unit;
    place.set(WAITING, { middle: y + tall / 2, tall });
    y += tall + gap;
  }
  const settle = (name) => {
    const children = clusters.get(name).children.filter((child) => clusters.has(child));
    if (!children.length) return place.get(name);
    const boxes = children.map(settle);
    const middle = (Math.min(...boxes.map((box) => box.middle - box.tall / 2)) + Math.max(...boxes.map((box) => box.middle + box.tall / 2))) / 2;
    const last = sizes.get(name);
    place.set(name, { middle, tall: last[last.length - 1][1] * unit });
    return place.get(name);
  };
  const inner = new Set(run.clusters.flatMap((cluster) => cluster.children));
  for (const name of clusters.keys()) if (!inner.has(name)) settle(name);
  return { place, sizes, unit, end: y - gap };
}

// A band as high as its members are many; it grows and shrinks in the round in which a client moves.
function bandPath({ middle }, steps, unit, x, from, to) {
  const edge = [[from, steps[0][1]]];
  steps.slice(1).forEach(([round, size], k) => {
    const at = Math.min(Math.max(x(round), from), to);
    edge.push([Math.max(from, at - 3), steps[k][1]], [Math.min(to, at + 3), size]);
  });
  edge.push([to, edge[edge.length - 1][1]]);
  const half = (size) => Math.max(size * unit, 1.2) / 2;
  return `${path(edge.map(([at, size]) => [at, middle - half(size)]))}${path(edge.reverse().map(([at, size]) => [at, middle + half(size)])).replace('M', 'L')}Z`;
}

// Clients that are not placed yet have a band of their own, below the leaves.
const WAITING = '';

function waitingBands({ middle }, unit, x, flow) {
  const rounds = [...look.waiting.keys()].sort((a, b) => a - b);
  const runs = [];
  for (const round of rounds) {
    const last = runs[runs.length - 1];
    if (last && last[last.length - 1] === round - 1) last.push(round);
    else runs.push([round]);
  }
  return runs.map((several) => {
    const steps = several.map((round) => [round - 1, look.waiting.get(round)]);
    const text = steps.map(([round, number]) => `Round ${round + 1}: ${counted(number, 'client')} not placed yet`).slice(0, 8).join('\n');
    return withTip(svg('path', { class: 'waiting', d: bandPath({ middle }, steps, unit, x, x(several[0] - 1) + (run.clusters.some(({ split }) => split === several[0] - 1) ? flow : 0), x(several[several.length - 1])), fill: 'var(--inner)', 'fill-opacity': 0.25 }), text);
  });
}

function treePicture(width) {
  const { leaves, clusters } = look;
  const clients = leaves.reduce((sum, name) => sum + clusters.get(name).members.length, 0) || 1;
  // A run without a split has nothing to compare, so one slim band is enough.
  const height = run.clusters.length === 1 ? 44 : Math.max(150, Math.min(460, 34 * leaves.length, 40 + clients * 26));
  const [start, end, top] = [50, width - 12, 10];
  const { place, sizes, unit, end: lowest } = treePlaces(height, top);
  const bottom = lowest + 4;
  // Children of a split in the very last round need some room too.
  const last = Math.max(run.run.planned, 1 + Math.max(...run.clusters.map((cluster) => cluster.born)));
  const x = scale(0, last, start, end);
  const flow = Math.min(28, (x(1) - x(0)) * 0.9);
  const drawing = svg('svg', { width, height: bottom + 20, role: 'group', 'aria-label': treeText() });
  const labels = [];
  if (look.waiting.size) drawing.append(...waitingBands(place.get(WAITING), unit, x, flow));
  for (const cluster of run.clusters) {
    const box = place.get(cluster.name);
    const made = run.clusters.some((parent) => childrenOf(parent).includes(cluster.name));
    const to = x(cluster.children.length ? cluster.split ?? cluster.born : Math.max(run.run.rounds, cluster.born + 1));
    const from = Math.min(x(cluster.born) + (made ? flow : 0), to - 2);
    const faint = !isWithin(cluster.name) || (state.client !== null && !wasIn(state.client, cluster.name));
    // The number of a cluster that was split is that at its split, before newcomers came.
    const sizesNow = sizes.get(cluster.name);
    const number = cluster.children.length ? sizesNow[sizesNow.length - 1][1] : cluster.members.length;
    const text = `Cluster ${cluster.name}: ${counted(number, 'client')}, from round ${cluster.born + 1}${
      cluster.children.length ? ` to ${cluster.split}` : `\n${listed(cluster.members.map(clientName), 12)}`}`;
    const band = svg('path', { 'data-key': `tree:${cluster.name}`, class: 'band', d: bandPath(box, sizes.get(cluster.name), unit, x, from, to),
      fill: colorOf(cluster.name), 'fill-opacity': (cluster.children.length ? 0.45 : 1) * (faint ? 0.3 : 1),
      role: 'button', tabindex: 0, 'aria-label': text, 'aria-pressed': String(state.cluster === cluster.name),
      onclick: () => toggle('cluster', cluster.name),
      onkeydown: onEnter(() => toggle('cluster', cluster.name)) });
    drawing.append(withTip(band, text));
    const late = look.waiting.get(cluster.split + 1);
    const children = cluster.split ? [...childrenOf(cluster), ...(late ? [WAITING] : [])] : [];
    const firsts = children.map((name) => (name === WAITING ? late : sizes.get(name)[0][1]));
    let offset = box.middle - box.tall / 2;
    children.forEach((child, k) => {
      const { middle } = place.get(child);
      const [tall, share] = [firsts[k] * unit, (firsts[k] / firsts.reduce((a, b) => a + b, 0)) * box.tall];
      const bend = to + flow / 2;
      drawing.append(svg('path', { fill: colorOf(child), 'fill-opacity': (faint ? 0.15 : 0.5) * (child === WAITING ? 0.5 : 1),
        d: `M${to} ${offset}C${bend} ${offset} ${bend} ${middle - tall / 2} ${to + flow} ${middle - tall / 2}v${tall}`
          + `C${bend} ${middle + tall / 2} ${bend} ${offset + share} ${to} ${offset + share}Z` }));
      offset += share;
    });
    if (cluster.split && cluster.children.length) {
      labels.push(withTip(svg('path', { class: 'point', d: diamond(to, box.middle, 7), fill: 'var(--ink)', stroke: 'var(--card)',
        'stroke-width': 2, onclick: () => pick({ cluster: cluster.name, round: cluster.split }) }), splitText(cluster)));
    }
    const name = `${cluster.name} · ${number}`;
    const tall = Math.min(18, box.tall - 2);
    const wide = name.length * 6.6 + 10;
    if (tall >= 11 && to - from > wide + 14) {
      // Of a leaf at its end, where it has so many members; of others before they were split.
      const at = cluster.children.length ? from + 5 : to - wide - 12;
      labels.push(svg('g', { 'pointer-events': 'none' },
        svg('rect', { x: at, y: box.middle - tall / 2, width: wide, height: tall, rx: 5, fill: 'var(--card)' }),
        svg('text', { x: at + 5, y: box.middle + 4, class: 'strong' }, name)));
    }
  }
  for (const trial of run.trials.filter(({ cluster }) => place.has(cluster))) {
    const { middle } = place.get(trial.cluster);
    // Beside the sign of the split itself, if that was made in the same round.
    const to = x(trial.round) + (look.clusters.get(trial.cluster).split === trial.round ? 17 : 0);
    if (trial.status === 'undone') {
      labels.push(svg('path', { d: diamond(x(trial.began), middle, 7), fill: 'var(--card)', stroke: 'var(--ink)', 'stroke-width': 2, 'pointer-events': 'none' }));
    }
    labels.push(withTip(svg('g', { class: 'point trial', onclick: () => pick({ cluster: trial.cluster, round: trial.round }) },
      svg('circle', { cx: to, cy: middle, r: 9, fill: 'var(--card)', stroke: 'var(--ink)', 'stroke-width': 1.5 }),
      svg('text', { x: to, y: middle + 4.5, 'text-anchor': 'middle', class: 'strong' }, statusOf(trial)[0])),
    decisionText(trial)));
  }
  for (const { round, clients: [...came] } of run.events.filter(({ kind }) => kind === 'joined')) {
    labels.push(withTip(svg('text', { class: 'point strong halo newcomers', x: x(round - 1) - 4, y: bottom - 6, 'text-anchor': 'end', onclick: () => pick({ round }) }, `+${came.length}`), `Round ${round}: ${counted(came.length, 'client')} joined`));
  }
  labels.push(...moveArrows(place, x, end));
  drawing.append(...labels);
  drawing.append(axes({ x, rounds: [0, run.run.planned], left: start, right: end, bottom }));
  if (state.round !== null) drawing.append(svg('line', { class: 'picked', x1: x(state.round), x2: x(state.round), y1: 0, y2: bottom }));
  return drawing;
}

// What clients judged of a split: a sign, and its meaning.
const SIGNS = { confirmed: ['✓', 'confirmed: the clients are served better'], likely: ['≈', 'confirmed: a gain is likely'],
  untested: ['?', 'the clients did not check it'],
  undone: ['✗', 'taken back'], refused: ['✗', 'refused: the cluster goes on as one'] };
const statusOf = ({ status, tested, sure }) => SIGNS[status !== 'confirmed' || sure ? status ?? 'untested' : tested ? 'likely' : 'untested'];

function treeLegend() {
  const signs = new Set(run.trials.map(statusOf));
  const mark = (sign, words) => html('span', {}, html('strong', {}, sign), ` ${words}`);
  return html('p', { class: 'legend' }, run.clusters.some(({ split, children }) => split && children.length) ? mark('◆', 'split') : null,
    [...signs].map((sign) => mark(...sign)),
    run.trials.some(({ status }) => status === 'undone') ? mark('◇', 'split that was taken back') : null,
    run.moves.length ? mark('●➝', 'a client moves') : null,
    run.events.some(({ kind }) => kind === 'joined') ? mark('+1', 'clients that joined') : null,
    run.clusters.some(({ children }) => children.length) ? html('span', {}, swatch('var(--inner)'), `grey: before the split${look.waiting.size ? ', and, paler, clients that are not placed yet' : ''}`) : null);
}

const treeText = () => `Tree of ${counted(run.clusters.length, 'cluster')} over ${
  counted(run.run.rounds, 'round')}; ${look.leaves.length} at the end: ${
  listed(look.leaves.map((name) => `${name} with ${counted(look.clusters.get(name).members.length, 'client')}`), 12)}.`;
