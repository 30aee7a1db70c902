// The similarity matrices
//
// The upper half comes as one byte an entry; it is drawn pixel by pixel and scaled up. Green is
// together, grey is apart: neither is the colour of a cluster, which the bars at the edges have.
function drawSimilarity() {
  if (run.run.kind !== 'clustered') return fill('similarity');
  const shown = run.matrices;
  if (!shown.length) {
    return fill('similarity', note('No similarity was computed: a split was never considered, or no round got that far.'));
  }
  const matrix = chosenMatrix(shown);
  const nameOf = ({ round, cluster }) => `${round}@${cluster}`;
  const choice = /** @type {HTMLSelectElement} */ (html('select', { id: 'matrix', 'data-key': 'matrix-choice', onchange: () => {
    state.matrix = choice.value;
    writeAddress();
    keepFocus(drawSimilarity);
  } }, shown.map((one) => html('option', { value: nameOf(one) }, `cluster ${one.cluster}, round ${one.round}: ${one.outcome}`))));
  choice.value = nameOf(matrix);
  return fill('similarity', html('h3', {}, 'Cosine similarity of the clients’ updates'),
    html('p', { class: 'choices' }, html('label', {}, 'Cluster and round ', choice)), groupMeans(matrix),
    byClient(matrix, html('div', { class: 'matrix' }, picture(`similarity-${matrix.round}-${matrix.cluster}`, (width) => matrixPicture(matrix, width), { class: matrix.clients.length > 30 ? 'wide many' : 'wide' }), matrixNotes(matrix))));
}

// The matrix of many clients is large and says little more than the means of its groups.
const FEW = 12;
function byClient(matrix, content) {
  const details = folded('Client by client', content);
  details.open = byId('similarity').querySelector('details')?.open ?? matrix.clients.length <= FEW;
  return details;
}

// The mean similarity within each group and between each two.
function groupMeans(matrix) {
  const [m, starts] = [matrix.clients.length, startsOf(matrix)];
  matrix.bytes ??= bytesOf(matrix.values, m);
  if (starts.length < 2 || starts.length > MOST_BANDS) return null;
  const mean = (a, b) => {
    let [sum, count] = [0, 0];
    for (let row = starts[a]; row < starts[a] + matrix.sides[a]; row += 1) {
      for (let column = starts[b]; column < starts[b] + matrix.sides[b]; column += 1) if (row !== column) [sum, count] = [sum + matrix.bytes[row * m + column], count + 1];
    }
    return count ? cosine(sum / count) : '–';
  };
  const heads = ['mean cosine', ...starts.map((_, i) => `group ${i + 1}`)];
  const rows = starts.map((_, a) => html('tr', {}, html('th', { scope: 'row' }, swatch(colorOf(look.home[matrix.clients[starts[a]]])), ` group ${a + 1}: ${counted(matrix.sides[a], 'client')}`), starts.map((__, b) => html('td', {}, mean(a, b)))));
  return table('Mean similarity of the groups', heads, rows);
}

// The one that was asked for; else one of the picked cluster or round, a split first.
function chosenMatrix(shown) {
  const fit = ({ round, cluster, outcome }) => 8 * Number(`${round}@${cluster}` === state.matrix) + 4 * Number(cluster === state.cluster) + 2 * Number(round === state.round) + Number(outcome === 'split');
  return shown.reduce((best, matrix) => (fit(matrix) > fit(best) ? matrix : best));
}

function bytesOf(upperHalf, m) {
  const binary = atob(upperHalf);
  const bytes = new Int8Array(m * m);
  let next = 0;
  for (let row = 0; row < m; row += 1) {
    bytes[row * m + row] = 127;
    for (let column = row + 1; column < m; column += 1) {
      const value = binary.charCodeAt(next);
      bytes[row * m + column] = value;
      bytes[column * m + row] = value;
      next += 1;
    }
  }
  return bytes;
}

function rgbOf(color) {
  const probe = html('i', { style: { color } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}

function palette() {
  const [low, middle, high] = [rgbOf('var(--away)'), rgbOf('var(--card)'), rgbOf('var(--together)')];
  return Array.from({ length: 255 }, (_, i) => {
    const value = (i - 127) / 127;
    const end = value < 0 ? low : high;
    return middle.map((from, channel) => Math.round(from + (end[channel] - from) * Math.abs(value) ** 0.8));
  });
}

function matrixImage(matrix) {
  const m = matrix.clients.length;
  const image = new ImageData(m, m);
  // Four bytes a pixel, in the order blue, green, red as a number on every machine of today.
  const packed = palette().map(([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  const pixels = new Int32Array(image.data.buffer);
  for (let i = 0; i < m * m; i += 1) pixels[i] = packed[Math.max(-127, matrix.bytes[i]) + 127];
  const canvas = /** @type {HTMLCanvasElement} */ (html('canvas', { width: m, height: m }));
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function matrixPicture(matrix, width) {
  const m = matrix.clients.length;
  matrix.bytes ??= bytesOf(matrix.values, m);
  const names = matrix.clients.map(clientName);
  const wanted = Math.min(110, 14 + 6.4 * Math.max(...names.map((name) => name.length)));
  const fits = (width - wanted - 8) / m >= 8;
  const start = fits ? wanted : 8;
  const size = Math.min(width - start - 2, Math.max(320, m * (m > 40 ? 9 : 36)));
  const tall = size / m;
  const top = 8;
  const drawing = svg('svg', { width, height: size + top + 2 });
  if (fits) {
    names.forEach((name, row) => drawing.append(svg('text', { x: start - 10, y: top + (row + 0.5) * tall + Math.min(4, tall * 0.32), 'text-anchor': 'end',
      class: matrix.clients[row] === state.client ? 'strong' : '', style: { fontSize: `${Math.min(12, tall - 0.5)}px` } }, name.length > 16 ? `${name.slice(0, 7)}…${name.slice(-6)}` : name)));
  }
  drawing.append(svg('image', { href: matrixImage(matrix), x: start, y: top, width: size, height: size, preserveAspectRatio: 'none', class: 'pixels' }));
  const homes = matrix.clients.map((client) => look.home[client]);
  for (let row = 0, next; row < m; row = next) {
    next = row + 1;
    while (next < m && homes[next] === homes[row]) next += 1;
    const [fill, long] = [colorOf(homes[row]), (next - row) * tall];
    drawing.append(svg('rect', { x: start - 7, y: top + row * tall, width: 5, height: long, fill }),
      svg('rect', { x: start + row * tall, y: top - 7, width: long, height: 5, fill }));
  }
  for (const from of startsOf(matrix).slice(1)) {
    const at = from * tall;
    drawing.append(svg('path', { d: `M${start} ${top + at}h${size}M${start + at} ${top}v${size}`, stroke: 'var(--ink)', 'stroke-width': 2 }));
  }
  const frame = (row, attributes) => svg('rect', { x: start, y: row === null ? 0 : top + row * tall, width: size, height: tall, fill: 'none', stroke: 'var(--ink)', ...attributes });
  const line = frame(null, { visibility: 'hidden' });
  const picked = matrix.clients.indexOf(state.client);
  drawing.append(line, picked < 0 ? '' : frame(picked, { 'stroke-width': 2 }));
  const at = (place) => Math.max(0, Math.min(m - 1, Math.floor(place / tall)));
  return along(drawing, { key: 'matrix', label: matrixText(matrix), steps: Array.from({ length: m }, (_, row) => row),
    nearest: ([, y]) => at(y - top),
    mark: (row) => {
      line.setAttribute('visibility', row === null ? 'hidden' : 'visible');
      if (row !== null) line.setAttribute('y', String(top + row * tall));
    },
    describe: (row, place) => {
      if (!place) return `${names[row]}: ${alikeText(matrix, row)}`;
      const column = at(place[0] - start);
      return `${names[row]}\n${names[column]}\ncosine similarity ${cosine(matrix.bytes[row * m + column])}`;
    },
    pick: (row) => toggle('client', matrix.clients[row]) });
}

const startsOf = (matrix) => matrix.sides.map((_, i) => matrix.sides.slice(0, i).reduce((a, b) => a + b, 0));
const sidesOf = (matrix) => matrix.sides.flatMap((size, i) => Array(size).fill(i));

const cosine = (byte) => (byte / 127).toFixed(2).replace('-0.00', '0.00').replace('-', '−');

// Sums and counts of the entries within a side, and across.
function alike(matrix, rows) {
  const m = matrix.clients.length;
  const side = sidesOf(matrix);
  const [sums, counts] = [[0, 0], [0, 0]];
  let most = -127;
  for (const row of rows) {
    for (let column = 0; column < m; column += 1) {
      if (column !== row) {
        const value = matrix.bytes[row * m + column];
        const apart = side[row] === side[column] ? 0 : 1;
        sums[apart] += value;
        counts[apart] += 1;
        if (apart && value > most) most = value;
      }
    }
  }
  const [within, across] = [0, 1].map((i) => (counts[i] ? cosine(sums[i] / counts[i]) : '–'));
  return { within, across, most: cosine(most) };
}
const alikeText = (matrix, row) => {
  const { within, across } = alike(matrix, [row]);
  return `mean similarity ${within} with its own group, ${across} with the others`;
};
function matrixText(matrix) {
  matrix.bytes ??= bytesOf(matrix.values, matrix.clients.length);
  const { within, across, most } = alike(matrix, matrix.clients.map((_, i) => i));
  return `Round ${matrix.round}, cluster ${matrix.cluster}: ${matrix.outcome}. Mean similarity within a group ${within}, across groups ${across} (at most ${most}).`;
}

function matrixNotes(matrix) {
  const colors = palette();
  const ramp = `linear-gradient(90deg, ${[0, 64, 127, 190, 254].map((i) => `rgb(${colors[i]})`).join(',')})`;
  const sides = startsOf(matrix).map((start, i) => matrix.clients.slice(start, start + matrix.sides[i]));
  return html('div', { class: 'side' },
    html('p', { class: 'hint' }, 'opposite −1 ', html('i', { class: 'ramp', style: { background: ramp } }), ' +1 the same'),
    html('p', { id: 'matrix-text' }, matrixText(matrix)),
    folded('The clients of each group', sides.map((side, i) => html('p', {}, html('strong', {}, `Group ${i + 1}`), `, ${counted(side.length, 'client')}: `,
      html('span', { class: 'anywhere' }, listed(side.map(clientName), 12))))));
}
