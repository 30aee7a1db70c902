// Clients with changed data that moved to the cluster they resemble now
//
// In the tree each is an arrow, several that go the same way in the same round are one. Below it each
// of these clients has a row in the colours of the clusters it was in, and each move its sentence.
const MOST_ROWS = 60;

function moveGroups() {
  const found = new Map();
  for (const move of run.moves) {
    const key = [move.round, move.from, move.to].join('@');
    found.set(key, [...(found.get(key) ?? []), move]);
  }
  return [...found.values()];
}

const moveText = ({ round, client, from, to, reason }) => `Round ${round}: ${clientName(client)} moved from ${from} to ${to}: ${reason}.`;

function moveArrows(place, x, end) {
  const groups = moveGroups().filter(([{ from, to }]) => place.has(from) && place.has(to));
  return groups.map((moves, k) => {
    const [{ round, from, to }] = moves;
    const [low, high] = [place.get(from).middle, place.get(to).middle];
    const way = Math.sign(high - low) || 1;
    // Several of one round are drawn next to each other.
    const at = x(round) + 9 * groups.slice(0, k).filter(([other]) => other.round === round).length;
    const next = Math.min(end, ...groups.slice(k + 1).map(([other]) => x(other.round)));
    const faint = state.client !== null && !moves.some(({ client }) => client === state.client);
    const name = moves.length === 1 ? clientName(moves[0].client) : counted(moves.length, 'client');
    return withTip(svg('g', { class: 'point move', 'data-round': round, opacity: faint ? 0.25 : 1, onclick: () => pick({ round, client: moves[0].client }) },
      svg('path', { d: `M${at} ${low}V${high - way * 3}`, stroke: 'var(--card)', 'stroke-width': 6, fill: 'none' }),
      svg('path', { d: `M${at} ${low}V${high - way * 3}`, stroke: 'var(--ink)', 'stroke-width': Math.min(5, 1.2 + moves.length / 2), fill: 'none' }),
      svg('circle', { cx: at, cy: low, r: 4.5, fill: 'var(--ink)', stroke: 'var(--card)', 'stroke-width': 1.5 }),
      svg('path', { d: `M${at} ${high}l-6 ${-way * 11}h12Z`, fill: 'var(--ink)', stroke: 'var(--card)', 'stroke-width': 1.5 }),
      next - at > 7 * name.length + 10 ? svg('text', { x: at + 7, y: (low + high) / 2 + 4, class: 'strong halo' }, name) : null),
    moves.slice(0, 6).map(moveText).join('\n'));
  });
}

function drawMoves() {
  if (!run.moves.length) return fill('moves');
  const cluster = (name) => [swatch(colorOf(name)), ` ${name}`];
  const list = run.moves.map((move) => html('li', { class: state.client === move.client ? 'chosen' : '' },
    button(`Round ${move.round}`, () => toggle('round', move.round), { class: 'plain', 'data-key': `move-round:${move.round}:${move.client}` }), ': ',
    button(clientName(move.client), () => toggle('client', move.client), { class: 'plain', 'data-key': `move:${move.round}:${move.client}` }),
    ' from ', cluster(move.from), ' to ', cluster(move.to), `. Why: ${move.reason}.`));
  return fill('moves', html('h3', {}, 'Moves to another cluster'),
    html('p', { class: 'hint' }, 'Clients with changed data, in the colours of the clusters they were in.'),
    picture('moves', movesPicture, { class: 'chart' }),
    html('ul', { class: 'note moves', tabindex: 0, 'aria-label': 'All moves' }, list));
}

function movesPicture(width) {
  const movers = [...new Set(run.moves.map(({ client }) => client))].sort((a, b) => a - b);
  const shown = movers.slice(0, MOST_ROWS);
  const tall = 22;
  const start = Math.min(width * 0.3, 16 + 6.6 * Math.max(...shown.map((client) => clientName(client).length)));
  const [end, bottom] = [width - 12, 6 + shown.length * tall];
  const x = scale(0, run.run.planned, start, end);
  const drawing = svg('svg', { width, height: bottom + 24 });
  const most = Math.floor((start - 12) / 6.6);
  shown.forEach((client, row) => {
    const y = 4 + row * tall;
    const name = clientName(client);
    drawing.append(svg('text', { x: start - 8, y: y + 15, 'text-anchor': 'end', class: client === state.client ? 'strong' : '' }, name.length > most ? `${name.slice(0, most - 1)}…` : name));
    staysOf(client).forEach(({ from, to, cluster }) => {
      const long = x(to) - x(from - 1);
      drawing.append(svg('rect', { x: x(from - 1), y: y + 2, width: Math.max(1, long - 1), height: tall - 4, rx: 2, fill: colorOf(cluster), 'fill-opacity': look.order.has(cluster) ? 1 : 0.45 }));
      if (long > cluster.length * 7 + 14) {
        drawing.append(svg('rect', { x: x(from - 1) + 4, y: y + 4, width: cluster.length * 6.2 + 8, height: tall - 8, rx: 4, fill: 'var(--card)' }),
          svg('text', { x: x(from - 1) + 8, y: y + 15, class: 'strong' }, cluster));
      }
    });
  });
  drawing.append(axes({ x, rounds: [0, run.run.planned], left: start, right: end, bottom }));
  if (movers.length > shown.length) drawing.append(svg('text', { x: end, y: 12, 'text-anchor': 'end', class: 'halo' }, `and ${movers.length - shown.length} more`));
  if (state.round !== null) drawing.append(svg('line', { class: 'picked', x1: x(state.round), x2: x(state.round), y1: 0, y2: bottom }));
  const mark = svg('rect', { x: start - 4, width: end - start + 8, height: tall, fill: 'none', stroke: 'var(--ink)', visibility: 'hidden' });
  drawing.append(mark);
  const describe = (row) => [clientName(shown[row]),
    ...staysOf(shown[row]).map(({ from, to, cluster }) => `rounds ${from}–${to}: ${cluster}`)].join('\n');
  return along(drawing, { key: 'moves', label: 'Clusters of the clients that moved', steps: shown.map((_, row) => row), describe,
    nearest: ([, y]) => Math.max(0, Math.min(shown.length - 1, Math.floor((y - 4) / tall))),
    mark: (row) => {
      mark.setAttribute('visibility', row === null ? 'hidden' : 'visible');
      if (row !== null) mark.setAttribute('y', String(4 + row * tall));
    },
    pick: (row) => toggle('client', shown[row]) });
}

const staysOf = (client) => run.stays[client].map(([from, cluster], k, all) => ({ from, cluster, to: all[k + 1] ? all[k + 1][0] - 1 : run.run.rounds }));
