// Facts, bad replies and absences, the config
function drawFacts() {
  byId('run-id').textContent = run.run.id;
  byId('finding').textContent = run.run.finding;
  const { accuracy, fl_accuracy: federated } = run.run.metrics;
  const gains = run.clients.map(gainOf).filter((gain) => gain !== null);
  const facts = [['clusters', String(look.leaves.length), ''], ['clients', String(run.clients.length), ''],
    ['rounds', String(run.run.rounds), run.run.finished ? '' : ` of ${run.run.planned}`]];
  if (accuracy !== undefined) facts.push(['mean accuracy', percent(accuracy), '']);
  if (accuracy !== undefined && federated !== undefined && run.run.method !== 'isolated') {
    const gain = (accuracy - federated) * 100;
    facts.push(['gain over FL', `${gain < 0 ? '−' : '+'}${Math.abs(gain).toFixed(1)}`, ' points']);
  }
  if (gains.length) {
    facts.push(['clients gained', String(gains.filter((g) => g > 0).length), ''],
      ['clients lost', String(gains.filter((g) => g < 0).length), '']);
  }
  if (run.run.adjustedRandIndex !== null) facts.push(['adjusted Rand index', figure(run.run.adjustedRandIndex), '']);
  fill('facts', facts.map(([name, value, unit]) =>
    html('div', {}, html('dt', {}, name), html('dd', {}, value, html('small', {}, unit)))));
}

function spans(rounds) {
  const found = [];
  for (const round of rounds) {
    const last = found[found.length - 1];
    if (last && round === last[1] + 1) last[1] = round;
    else found.push([round, round]);
  }
  return listed(found.map(([from, to]) => (from === to ? String(from) : `${from}–${to}`)), 12);
}

function drawProblems() {
  const sampled = run.config['fraction-train'] < 1;
  const rows = run.problems.map(({ client, problem, rounds }) => [client, problem, rounds.length, spans(rounds)]);
  const told = new Map();
  for (const { client, rounds } of run.problems) told.set(client, (told.get(client) ?? 0) + rounds.length);
  run.heard.forEach(([heard, member], client) => {
    const missing = member - heard - (told.get(client) ?? 0);
    if (missing > 0 && !sampled) rows.push([client, 'was not there, or served another cluster’s model', missing, '']);
  });
  rows.sort((a, b) => a[0] - b[0]);
  const notes = [];
  if (sampled) {
    notes.push(html('p', { class: 'note' }, `A share of ${run.config['fraction-train']} of every cluster trains in a round, so a client that is not heard from is not absent.`));
  }
  if (!rows.length) {
    notes.push(html('p', { class: 'note' }, sampled ? 'No reply had to be set aside.' : 'Every client answered every round with a usable reply.'));
    return fill('problems', notes);
  }
  return fill('problems', notes, html('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-labelledby': 'problems-title' },
    html('table', {}, html('thead', {}, html('tr', {}, html('th', { scope: 'col' }, 'client'),
      html('th', { scope: 'col', class: 'left' }, 'reply'), html('th', { scope: 'col' }, 'times'),
      html('th', { scope: 'col', class: 'left' }, 'rounds'))),
    html('tbody', {}, rows.map(([client, problem, times, when]) => html('tr', {},
      html('th', { scope: 'row' }, clientName(client)), html('td', { class: 'left wrap' }, problem),
      html('td', {}, String(times)), html('td', { class: 'left wrap' }, when)))))));
}

function drawConfig() {
  const keys = (values) => html('dl', { class: 'keys' }, Object.entries(values).map(([key, value]) =>
    html('div', {}, html('dt', {}, key), html('dd', {}, value === '' ? '""' : String(value)))));
  fill('config', keys(run.config), html('details', {}, html('summary', {}, 'Versions'), keys(run.versions)));
}
