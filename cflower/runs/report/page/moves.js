// Clients with changed data that moved to the cluster they resemble now
//
// In the tree each is an arrow, several that go the same way in the same round are one.
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

// All that happened, in one line: splits, what clients judged of them, newcomers, opened clusters, moves.
const MOST_STEPS = 10;

function drawTimeline() {
  if (run.run.kind !== 'clustered') return fill('timeline');
  const short = { joined: ({ clients }) => `${counted(clients.length, 'client')} joined`, opened: ({ cluster, clients }) => `cluster ${cluster} opened for ${clients.length}`,
    moved: ({ clients, cluster }) => `${counted(clients.length, 'move')} to ${cluster}` };
  const steps = [
    ...run.clusters.filter(({ split, children }) => split && children.length).map((cluster) => ({ round: cluster.split, text: `cluster ${cluster.name} split into ${childrenOf(cluster).length}`, tip: splitText(cluster) })),
    ...run.trials.filter(({ status }) => status === 'refused' || status === 'undone').map((trial) => ({ round: trial.round, text: trial.outcome, tip: decisionText(trial) })),
    ...run.events.map((event) => ({ round: event.round, text: short[event.kind](event), tip: eventText(event) })),
  ].sort((a, b) => a.round - b.round);
  const items = steps.slice(0, MOST_STEPS).map(({ round, text, tip }, i) => html('li', {}, button(`Round ${round}`, () => toggle('round', round), { class: 'plain', title: tip, 'data-key': `step:${i}` }), ` ${text}`));
  const more = steps.length > MOST_STEPS ? html('li', {}, `${steps.length - MOST_STEPS} more below`) : null;
  return fill('timeline', steps.length ? html('ol', { class: 'timeline' }, items, more) : null);
}
