// Clients with changed data that moved to the cluster they resemble now
//
// In the tree each is an arrow, several that go the same way in the same round are one. Below it each
// move has its sentence.
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
    html('p', { class: 'hint' }, 'Clients with changed data.'),
    html('ul', { class: 'note moves', tabindex: 0, 'aria-label': 'All moves' }, list));
}
