// What is picked
//
// One cluster, one round and one client can be picked, here or by a click on any of them; every part
// of the page follows. All choices are part of the address, so it can be sent to others.
const NOTHING = { cluster: '', round: null, client: null };
const state = { ...NOTHING, search: '', sort: 'name', way: 1, matrix: '', from: 1, at: '',
  panels: 12, cards: 12 };

function pick(changes) {
  Object.assign(state, changes);
  if ('cluster' in changes || 'round' in changes) state.matrix = '';
  writeAddress();
  keepFocus(() => drawPicked());
}
const toggle = (key, value) => pick({ [key]: state[key] === value ? NOTHING[key] : value });

function drawPicked() {
  drawPicks();
  drawn('scores', drawScores, 'scores', 'common', 'curves');
  drawn('tree', drawTree);
  drawn('layers', drawLayers, 'bodies');
  drawn('timeline', drawTimeline);
  drawn('clients', drawClients);
  drawn('data', drawData, 'data');
  drawn('similarity', drawSimilarity, 'matrices');
  drawn('why', drawWhy, 'trials', 'personal', 'moves', 'events');
}

function drawPicks() {
  const option = (value, text) => html('option', { value }, text);
  const depth = (name) => '\u2003'.repeat(name.split('.').length - 1);
  const cluster = html('select', { id: 'pick-cluster', 'data-key': 'pick-cluster', onchange: () => pick({ cluster: cluster.value }) },
    option('', 'all'), run.clusters.map(({ name, members }) => option(name, `${depth(name)}${name} (${members.length})`)));
  cluster.value = state.cluster;
  const round = html('select', { id: 'pick-round', 'data-key': 'pick-round',
    onchange: () => pick({ round: round.value ? Number(round.value) : null }) },
  option('', 'none'), Array.from({ length: run.run.rounds }, (_, i) => option(i + 1, String(i + 1))));
  round.value = state.round ?? '';
  const client = html('select', { id: 'pick-client', 'data-key': 'pick-client',
    onchange: () => pick({ client: client.value === '' ? null : Number(client.value) }) },
  option('', 'none'), run.clients.map(({ name }, i) => option(i, name)));
  client.value = state.client ?? '';
  const labelled = (text, control) => html('label', {}, `${text} `, control);
  const some = Object.keys(NOTHING).some((key) => state[key] !== NOTHING[key]);
  fill('picks', 'Highlight:', run.run.kind === 'clustered' ? labelled('Cluster', cluster) : null, labelled('Round', round), labelled('Client', client),
    some ? button('Clear', () => pick(NOTHING), { 'data-key': 'clear' }) : null);
}

function readAddress() {
  const params = new URLSearchParams(location.hash.slice(1));
  const number = (key) => (params.get(key) === null || Number.isNaN(Number(params.get(key))) ? null : Number(params.get(key)));
  const round = number('round');
  const client = run.clients.findIndex(({ name }) => name === params.get('client'));
  Object.assign(state, {
    cluster: look.clusters.has(params.get('cluster')) ? params.get('cluster') : '',
    round: Number.isInteger(round) && round >= 1 && round <= run.run.rounds ? round : null,
    client: client < 0 ? null : client,
    search: params.get('search') ?? '',
    sort: (params.get('sort') ?? 'name').replace('-', ''),
    way: params.get('sort')?.startsWith('-') ? -1 : 1,
    matrix: params.get('matrix') ?? '',
    from: number('from') ?? 1,
    at: params.get('at') ?? '',
  });
}

function writeAddress() {
  const sort = `${state.way < 0 ? '-' : ''}${state.sort}`;
  const params = { cluster: state.cluster, round: state.round, client: state.client === null ? null : clientName(state.client),
    search: state.search, sort: sort === 'name' ? '' : sort, matrix: state.matrix, from: state.from > 1 ? state.from : null, at: state.at };
  const set = Object.entries(params).filter(([, value]) => known(value) && value !== '');
  history.replaceState(history.state, '', `#${new URLSearchParams(set.map(([key, value]) => [key, String(value)]))}`);
}

// Every heading is an address of its own.
function drawAnchors() {
  for (const heading of document.querySelectorAll('h2[id]')) {
    const at = heading.id.replace('-title', '');
    heading.append(html('a', { class: 'anchor', href: `#at=${at}`, 'aria-label': `Address of “${heading.textContent}”`, onclick: (event) => {
      event.preventDefault();
      state.at = at;
      writeAddress();
      heading.scrollIntoView();
    } }, '#'));
  }
}
