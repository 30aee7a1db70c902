// Clusters and clients, with the models that serve them
//
// They are compared with conventional FL where it was measured, else with the common model.
const other = () => (run.clients.some((client) => known(client.federated)) ? ['federated', 'conventional FL']
  : ['fl', 'common model']);

function gainOf(client) {
  const [key] = other();
  return known(client.own) && known(client[key]) ? client.own - client[key] : null;
}

// The columns about a client, as they are called everywhere on the page.
const WORDS = { name: 'client', cluster: 'cluster', share: 'personal share', level: 'model of', examples: 'held-out examples', group: 'true group' };
const wordsOf = (key) => WORDS[key] ?? run.run.words[key];

// The mean of a figure over a cluster, by held-out examples; of how many clients, if not of all.
const meanOf = (name, key) => look.clusters.get(name).means[key] ?? null;
function meanText(name, clients, key) {
  const having = clients.filter((client) => known(client[key])).length;
  return score(meanOf(name, key)) + (having && having < clients.length ? ` of ${having}` : '');
}

// ▲ is better and ▼ worse, whatever the sign.
const arrowed = (gain) => (known(gain) && gain !== 0 ? `${signed(gain)} ${better(gain) > 0 ? '▲' : '▼'}` : signed(gain));
const difference = () => `difference${metric().percent ? ' (points)' : ''}`;

function drawClients() {
  if (!run.clients.length) return fill('clients', note('No client has answered yet.'));
  const search = /** @type {HTMLInputElement} */ (html('input', { id: 'search', 'data-key': 'search', type: 'search', value: state.search, placeholder: 'name or group', oninput: () => {
    state.search = search.value;
    writeAddress();
    rows();
  } }));
  const count = html('span', { id: 'shown-clients', role: 'status' });
  const { node, rows } = clientTable(count);
  fill('clients', clusterTable(), html('p', { class: 'choices' }, html('label', {}, 'Find clients ', search), count), node);
  return rows();
}

// One row for each cluster: means over its clients, and its worst client.
function clusterTable() {
  if (run.run.kind !== 'clustered' || look.leaves.length < 2) return null;
  const [key, words] = other();
  const compared = run.clients.some((client) => known(client[key]));
  const grouped = run.clients.some((client) => known(client.group));
  const heads = ['cluster', 'clients', 'this run', ...(compared ? [words, difference(), 'better / worse'] : []), 'worst',
    ...(grouped ? ['true groups'] : [])];
  const rows = look.leaves.map((name) => {
    const mine = run.clients.filter((client) => client.cluster === name);
    const gains = mine.map(gainOf).filter(known).map(better);
    const worst = mine.filter((client) => known(client.own)).sort((a, b) => better(a.own - b.own))[0];
    const groups = new Map();
    for (const { group } of mine) groups.set(group ?? '–', (groups.get(group ?? '–') ?? 0) + 1);
    return html('tr', { class: state.cluster === name ? 'chosen' : '' },
      html('th', { scope: 'row' }, swatch(colorOf(name)), ' ', button(name, () => toggle('cluster', name),
        { class: 'plain', 'data-key': `cluster:${name}`, 'aria-pressed': String(state.cluster === name) })),
      html('td', {}, String(mine.length)), html('td', {}, meanText(name, mine, 'own')),
      compared ? [html('td', {}, meanText(name, mine, key)), html('td', {}, arrowed(known(meanOf(name, key)) ? meanOf(name, 'own') - meanOf(name, key) : null)),
        html('td', {}, `${gains.filter((gain) => gain > 0).length} / ${gains.filter((gain) => gain < 0).length}`)] : [],
      html('td', {}, worst ? `${score(worst.own)} (${worst.name})` : '–'),
      grouped ? html('td', {}, listed([...groups].map(([group, number]) => `${group}: ${number}`), 4)) : null);
  });
  return html('div', { id: 'clusters' }, table('Clusters', heads, rows));
}

function clientTable(count) {
  const [compared] = other();
  const keys = ['name', 'cluster', 'own', 'leaf', 'share', ...(compared === 'fl' ? ['fl', 'gain'] : ['federated', 'gain', 'isolated', 'tuned', 'clustered', 'fl']),
    'level', 'examples', 'group'];
  const columns = keys.map((key) => [key, wordsOf(key) ?? difference()]);
  const clients = run.clients.map((client, i) => ({ ...client, cluster: run.run.kind === 'clustered' ? client.cluster : null, gain: gainOf(client), i }));
  const used = columns.filter(([key]) => clients.some((row) => known(row[key])));
  const largest = Math.max(1e-9, ...clients.map((row) => Math.abs(row.gain ?? 0)));
  const body = html('tbody');
  const heads = used.map(([key, words]) => html('th', { scope: 'col', 'data-column': key }, button(words, () => {
    state.way = state.sort === key ? -state.way : 1;
    state.sort = key;
    writeAddress();
    rows();
  }), html('span', { 'aria-hidden': 'true' })));
  const rows = () => {
    const { sort: key, way } = state;
    const wanted = state.search.trim().toLowerCase();
    const found = clients.filter((row) => isMember(row.i, state.cluster)
      && [row.name, known(row.group) ? `group ${row.group}` : ''].some((text) => text.toLowerCase().includes(wanted)));
    found.sort((a, b) => {
      if (!known(a[key]) || !known(b[key])) return Number(known(b[key])) - Number(known(a[key])) || a.i - b.i;
      const rank = typeof a[key] === 'number' ? a[key] - b[key] : natural.compare(a[key], b[key]);
      return way * rank || a.i - b.i;
    });
    for (const head of heads) {
      const mine = head.getAttribute('data-column') === key;
      head.setAttribute('aria-sort', mine ? (way > 0 ? 'ascending' : 'descending') : 'none');
      head.lastChild.textContent = mine ? (way > 0 ? ' ↑' : ' ↓') : '';
    }
    body.replaceChildren(...found.map((row) => (row.node ??= clientRow(row, used, largest))));
    const where = state.cluster ? ` of cluster ${state.cluster}` : '';
    count.textContent = found.length < clients.length ? `${found.length} of ${clients.length} clients${where}` : counted(clients.length, 'client');
  };
  const hint = run.run.finished ? `${capital(metric().name)} on each client’s held-out examples at the end.`
    : 'The run is not finished: the figures are as of the last round.';
  const node = [html('p', { class: 'hint' }, hint), html('div', { id: 'client-table' }, scrolling('Table of clients', html('thead', {}, html('tr', {}, heads)), body))];
  return { node, rows };
}

function clientRow(row, columns, largest) {
  const cells = {
    name: () => html('th', { scope: 'row', title: row.name }, button(row.name, () => toggle('client', row.i),
      { class: 'plain', 'data-key': `client:${row.i}`, 'aria-pressed': String(state.client === row.i) })),
    cluster: () => html('td', {}, swatch(colorOf(row.cluster)), ` ${row.cluster ?? '–'}`),
    gain: () => html('td', {}, known(row.gain) ? [html('i', { class: better(row.gain) < 0 ? 'bar lost' : 'bar',
      style: { width: `${(Math.abs(row.gain) / largest) * 60}px` } }), arrowed(row.gain)] : '–'),
    share: () => html('td', {}, known(row.share) ? `${Math.round(100 * row.share)}%` : '–'),
    level: () => html('td', {}, row.level ?? '–'),
    examples: () => html('td', {}, known(row.examples) ? String(row.examples) : '–'),
    group: () => html('td', {}, String(row.group ?? '–')),
  };
  const line = html('tr', { class: state.client === row.i ? 'chosen' : '', onclick: (event) => {
    if (!event.target.closest('button')) toggle('client', row.i);
  } }, columns.map(([key]) => cells[key]?.() ?? html('td', {}, score(row[key]))));
  return line;
}
