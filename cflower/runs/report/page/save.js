// Pictures and data to take along
//
// A picture is saved as it looks now: the style sheet's colours become its own attributes.
const KEPT = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-opacity', 'stroke-dasharray', 'stroke-linejoin',
  'paint-order', 'font-family', 'font-size', 'font-weight', 'text-anchor', 'visibility', 'image-rendering'];

function standalone(drawing) {
  const copy = drawing.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll('*')];
  [drawing, ...drawing.querySelectorAll('*')].forEach((node, i) => {
    const seen = getComputedStyle(node);
    for (const key of KEPT) copies[i].setAttribute(key, seen.getPropertyValue(key));
    for (const key of ['class', 'style', 'tabindex', 'data-key']) copies[i].removeAttribute(key);
  });
  const back = svg('rect', { width: '100%', height: '100%', fill: `rgb(${rgbOf('var(--card)')})` });
  copy.prepend(back);
  return new XMLSerializer().serializeToString(copy);
}

function save(name, kind, parts) {
  const address = URL.createObjectURL(new Blob(parts, { type: kind }));
  html('a', { href: address, download: `${run.run.id}-${name}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// Two pixels to each of the picture's own.
function savePng(name, drawing) {
  const image = new Image();
  image.addEventListener('load', () => {
    const canvas = /** @type {HTMLCanvasElement} */ (html('canvas', { width: image.width * 2, height: image.height * 2 }));
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${name}.png`, 'image/png', [blob]));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(drawing))}`;
}

const saveButtons = (name, drawing) => html('p', { class: 'save' },
  button('SVG', () => save(`${name}.svg`, 'image/svg+xml', [standalone(drawing())]), { 'aria-label': `Save the picture ${name} as SVG` }),
  button('PNG', () => savePng(name, drawing()), { 'aria-label': `Save the picture ${name} as PNG` }));

// A cell that a spreadsheet would take for a formula is turned into text.
const cell = (value) => (known(value) ? `"${String(value).replace(typeof value === 'string' ? /^(?=[=+@\-\t])/ : /^$/, "'").replaceAll('"', '""')}"` : '');
const csv = (heads, rows) => [heads, ...rows].map((row) => row.map(cell).join(',')).join('\r\n');

// The heads of the page; a figure has the name of its metric, too.
function clientsCsv() {
  const keys = Object.keys(run.clients[0] ?? {}).filter(wordsOf);
  const heads = keys.map((key) => (WORDS[key] ?? `${wordsOf(key)}: ${metric().name}`));
  return csv(heads, run.clients.map((client) => keys.map((key) => client[key])));
}

function roundsCsv() {
  const { sentences, reason, figures, ...columns } = run.lines;
  const extra = [...new Set(figures.flatMap((row) => Object.keys(row || {})))];
  return csv([...Object.keys(columns), 'reason', ...extra], reason.map((number, i) =>
    [...Object.values(columns).map((column) => column[i]), sentences[number], ...extra.map((key) => (figures[i] || {})[key])]));
}

function drawSaves() {
  fill('saves', 'Data of this page: ',
    button('Clients (CSV)', () => save('clients.csv', 'text/csv', [clientsCsv()])),
    button('Rounds and decisions (CSV)', () => save('rounds.csv', 'text/csv', [roundsCsv()])),
    button('Everything (JSON)', () => save('run.json', 'application/json', [JSON.stringify(run)])));
}
