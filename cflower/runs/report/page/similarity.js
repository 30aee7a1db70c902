// The similarity matrices
//
// The upper half comes as one byte an entry. Drawn pixel by pixel and scaled up: 500 × 500 takes
// a few milliseconds.
// Blue pulls apart, orange together; the middle is the page's own card colour.
function drawSimilarity() {
  const { shown, left_out: leftOut } = run.matrices;
  if (!shown.length) {
    return fill('similarity', html('p', { class: 'note' },
      'No similarity was computed: the norms never allowed a split, or no round got that far.'));
  }
  const splitAt = shown.findIndex((matrix) => matrix.outcome === 'split');
  state.matrix = Math.min(state.matrix ?? Math.max(splitAt, 0), shown.length - 1);
  const output = html('output', { for: 'matrix' });
  const stage = html('div', { class: 'matrix' });
  const slider = html('input', { id: 'matrix', type: 'range', min: 0, max: Math.max(shown.length - 1, 0), step: 1,
    value: state.matrix, disabled: shown.length === 1, oninput: () => {
      state.matrix = Number(slider.value);
      show();
    } });
  const show = () => {
    const matrix = shown[state.matrix];
    const text = `round ${matrix.round}, cluster ${matrix.cluster}: ${matrix.outcome}`;
    output.textContent = text;
    slider.setAttribute('aria-valuetext', text);
    stage.replaceChildren(...matrixParts(matrix));
  };
  fill('similarity', html('div', { class: 'panel sliders' }, html('div', {},
    html('label', { for: 'matrix' }, `Round (${shown.length} shown)`, output), slider)), stage,
  leftOut ? html('p', { class: 'note' }, `${leftOut} more matrices of refused splits are in the run folder; `
    + 'they are left out to keep this page small.') : null);
  return show();
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
  const [low, middle, high] = [rgbOf('var(--c0)'), rgbOf('var(--card)'), rgbOf('var(--c1)')];
  return Array.from({ length: 255 }, (_, i) => {
    const value = (i - 127) / 127;
    const end = value < 0 ? low : high;
    return middle.map((from, channel) => Math.round(from + (end[channel] - from) * Math.abs(value) ** 0.8));
  });
}

function matrixParts(matrix) {
  const m = matrix.clients.length;
  matrix.bytes ??= bytesOf(matrix.values, m);
  const colors = palette();
  const image = new ImageData(m, m);
  // Four bytes a pixel, in the order blue, green, red as a number on every machine of today.
  const packed = colors.map(([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  const pixels = new Int32Array(image.data.buffer);
  for (let i = 0; i < m * m; i += 1) pixels[i] = packed[Math.max(-127, matrix.bytes[i]) + 127];
  const small = html('canvas', { width: m, height: m });
  small.getContext('2d').putImageData(image, 0, 0);

  const room = Math.min(520, byId('similarity').clientWidth - (m <= 30 ? 110 : 4));
  const size = Math.max(m, Math.floor(Math.min(room, Math.max(300, m * 26)) / m) * m);
  const canvas = html('canvas', { width: size, height: size, role: 'img', 'aria-label': matrixText(matrix).join(' ') });
  const pen = canvas.getContext('2d');
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, size, size);
  pen.fillStyle = `rgb(${rgbOf('var(--ink)')})`;
  for (const start of startsOf(matrix).slice(1)) {
    const cut = (start / m) * size;
    pen.fillRect(0, cut - 1, size, 2);
    pen.fillRect(cut - 1, 0, 2, size);
  }
  const at = (place, whole) => Math.max(0, Math.min(m - 1, Math.floor((place / whole) * m)));
  canvas.addEventListener('pointermove', (event) => {
    const box = canvas.getBoundingClientRect();
    const [row, column] = [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
    tell(`${clientName(matrix.clients[row])}\n${clientName(matrix.clients[column])}\ncosine similarity ${
      (matrix.bytes[row * m + column] / 127).toFixed(2)}`, event.clientX, event.clientY);
  });
  canvas.addEventListener('pointerleave', hush);

  const sides = startsOf(matrix).map((start, i) => matrix.clients.slice(start, start + matrix.sides[i]));
  const ramp = `linear-gradient(90deg, ${[0, 64, 127, 190, 254].map((i) => `rgb(${colors[i]})`).join(',')})`;
  return [html('div', { class: 'named' }, m <= 30 ? matrixNames(matrix, size) : null, canvas), html('div', { class: 'side' },
    html('p', { class: 'hint' }, '−1 ', html('i', { style: { background: ramp, display: 'inline-block', width: '120px',
      height: '10px', borderRadius: '3px', border: '1px solid var(--line)' } }), ' +1'),
    sides.map((side, i) => html('p', {}, html('strong', {}, `Side ${i + 1}`), `, ${counted(side.length, 'client')}: `,
      html('span', { style: { overflowWrap: 'anywhere' } }, listed(side.map(clientName), 12)))),
    matrixText(matrix).map((text) => html('p', { class: 'note' }, text)))];
}

function matrixNames(matrix, size) {
  const tall = size / matrix.clients.length;
  return html('ol', { 'aria-hidden': 'true', style: { lineHeight: `${tall}px`, fontSize: `${Math.min(12, tall - 2)}px` } },
    matrix.clients.map((i) => html('li', {}, clientName(i))));
}

const startsOf = (matrix) => matrix.sides.map((_, i) => matrix.sides.slice(0, i).reduce((a, b) => a + b, 0));

function matrixText(matrix) {
  const m = matrix.clients.length;
  const side = matrix.sides.flatMap((size, i) => Array(size).fill(i));
  const sums = [0, 0];
  const counts = [0, 0];
  let across = -127;
  for (let row = 0; row < m; row += 1) {
    for (let column = row + 1; column < m; column += 1) {
      const value = matrix.bytes[row * m + column];
      const apart = side[row] === side[column] ? 0 : 1;
      sums[apart] += value;
      counts[apart] += 1;
      if (apart && value > across) across = value;
    }
  }
  const of = (i) => (counts[i] ? (sums[i] / counts[i] / 127).toFixed(2) : '–');
  return [`Mean similarity within a side ${of(0)}, across the sides ${of(1)}; the most alike across are at ${(across / 127).toFixed(2)}.`];
}
