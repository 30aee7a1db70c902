// The client × model table
//
// The better of the two models of each client has a star, and its gain a bar as long as it is large.
const COLUMNS = [
  ['name', 'client'], ['examples', 'examples'], ['cluster', 'cluster'], ['federated', 'FL model'],
  ['own', 'own model'], ['gain', 'gain'], ['best', 'best level'], ['ensemble', 'ensemble'],
  ['group', 'true group'],
];
const natural = new Intl.Collator('en', { numeric: true });

function gainOf(client) {
  const known = [client.own, client.federated].every((value) => value !== null && value !== undefined);
  return known ? client.own - client.federated : null;
}

function drawClients() {
  if (!run.clients.length) return fill('clients', html('p', { class: 'note' }, 'No client has answered yet.'));
  const rows = run.clients.map((client, i) => ({ ...client, gain: gainOf(client), i }));
  const columns = COLUMNS.filter(([key]) => rows.some((row) => row[key] !== null && row[key] !== undefined));
  const largest = Math.max(0.001, ...rows.map((row) => Math.abs(row.gain ?? 0)));
  const body = html('tbody');
  const heads = columns.map(([key, words]) => {
    const button = html('button', { type: 'button', onclick: () => {
      state.sort = [key, state.sort[0] === key ? -state.sort[1] : 1];
      order();
    } }, words);
    return html('th', { scope: 'col', 'data-key': key }, button, html('span', { 'aria-hidden': 'true' }));
  });
  const order = () => {
    const [key, way] = state.sort;
    const known = (row) => row[key] !== null && row[key] !== undefined;
    rows.sort((a, b) => {
      if (!known(a) || !known(b)) return known(b) - known(a) || a.i - b.i;
      const rank = typeof a[key] === 'number' ? a[key] - b[key] : natural.compare(a[key], b[key]);
      return way * rank || a.i - b.i;
    });
    for (const head of heads) {
      const mine = head.dataset.key === key;
      head.setAttribute('aria-sort', mine ? (way > 0 ? 'ascending' : 'descending') : 'none');
      head.lastChild.textContent = mine ? (way > 0 ? ' ↑' : ' ↓') : '';
    }
    body.replaceChildren(...rows.map((row) => (row.node ??= clientRow(row, columns, largest))));
  };
  order();
  const unfinished = run.run.finished ? null : html('p', { class: 'hint' },
    'The run is not finished: the FL model is compared at its end; own models are as of the last round.');
  return fill('clients', html('p', { class: 'hint' }, 'Accuracy on each client’s held-out examples at the end; ★ marks the better model.'),
    unfinished,
    html('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-labelledby': 'clients-title' },
      html('table', {}, html('thead', {}, html('tr', {}, heads)), body)));
}

function clientRow(row, columns, largest) {
  const better = (mine, other) => (mine === null || mine === undefined || row.gain === null ? null
    : mine >= other ? 'best' : 'worse');
  const cells = {
    name: () => html('th', { scope: 'row', title: row.name }, row.name),
    examples: () => html('td', {}, row.examples === null ? '–' : String(row.examples)),
    cluster: () => html('td', {}, swatch(colorOf(row.cluster)), ` ${row.cluster ?? '–'}`),
    federated: () => html('td', { class: better(row.federated, row.own) }, percent(row.federated)),
    own: () => html('td', { class: better(row.own, row.federated) }, percent(row.own)),
    gain: () => html('td', { class: row.gain < 0 ? 'lost' : null }, row.gain === null ? '–' : [
      html('i', { class: 'bar', style: { width: `${(Math.abs(row.gain) / largest) * 70}px`,
        background: row.gain < 0 ? 'var(--c1)' : 'var(--c0)' } }),
      `${row.gain < 0 ? '−' : '+'}${Math.abs(row.gain * 100).toFixed(1)}`]),
    best: () => html('td', {}, percent(row.best)),
    ensemble: () => html('td', {}, percent(row.ensemble)),
    group: () => html('td', {}, String(row.group ?? '–')),
  };
  return html('tr', {}, columns.map(([key]) => cells[key]()));
}
