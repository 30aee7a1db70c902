// Drawing
//
// The few tools that all pictures share. Text only ever goes in as text (`textContent`), so a name
// that looks like HTML is shown as it is.
const byId = (id) => document.getElementById(id);

function make(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'style') Object.assign(node.style, value);
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const html = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  make(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

const fill = (id, ...children) => byId(id).replaceChildren(...children.flat().filter((child) => child));
const figure = (value) => (value === null || value === undefined ? '–'
  : String(Number(value.toPrecision(3))).replace('-', '−'));
const percent = (value, digits = 1) =>
  (value === null || value === undefined ? '–' : `${(value * 100).toFixed(digits)}%`);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

function listed(names, most = 8) {
  if (names.length <= most) return names.join(', ');
  return `${names.slice(0, most).join(', ')} and ${names.length - most} more`;
}

// A picture is drawn anew at the width it has, so that its text keeps its size on a phone.
const watched = new ResizeObserver((entries) => {
  for (const { target } of entries) target.redraw?.();
});
function picture(draw, attributes = {}) {
  const box = html('div', attributes);
  let width = 0;
  box.redraw = (force) => {
    const now = Math.floor(box.clientWidth - parseFloat(getComputedStyle(box).paddingLeft) * 2);
    if (now > 40 && (force || now !== width)) box.replaceChildren(draw((width = now)));
  };
  watched.observe(box);
  return box;
}

const scale = (from, to, start, end) => (value) =>
  start + ((value - from) / (to - from || 1)) * (end - start);

function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    found.push(Number((i * step).toPrecision(10)));
  }
  return found;
}

// Axes: light lines across for the values, whole rounds below.
function axes({ x, y, rounds, values, left, right, top, bottom, name = figure }) {
  const parts = values.map((value) => svg('g', {},
    svg('line', { class: 'grid', x1: left, x2: right, y1: y(value), y2: y(value) }),
    svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end' }, name(value))));
  const whole = ticks(rounds[0], rounds[1], Math.max(2, (right - left) / 70)).filter(Number.isInteger);
  for (const round of whole) {
    parts.push(svg('text', { x: x(round), y: bottom + 15, 'text-anchor': 'middle' }, String(round)));
  }
  parts.push(svg('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }));
  return svg('g', { 'aria-hidden': 'true' }, parts);
}

function path(points) {
  let d = '';
  let pen = false;
  for (const [x, y] of points) {
    if (y === null || Number.isNaN(y)) pen = false;
    else { d += `${pen ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`; pen = true; }
  }
  return d;
}
const diamond = (x, y, r) => `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`;

// What is under the pointer, or at the keyboard's cursor, is told in one floating box. A picture over
// rounds is a slider to the keyboard and to a screen reader: its value is the round, read out with
// everything the box says.
function tell(text, x, y) {
  const tip = byId('tip');
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${y - height - 12 < 4 ? y + 18 : y - height - 12}px`;
}
const hush = () => { byId('tip').hidden = true; };
const tellable = (node, text) => {
  node.addEventListener('pointermove', (event) => tell(text, event.clientX, event.clientY));
  node.addEventListener('pointerleave', hush);
  return node;
};

function overRounds(drawing, { label, rounds, x, top, bottom, describe }) {
  const line = svg('line', { class: 'axis', y1: top, y2: bottom, visibility: 'hidden' });
  drawing.append(line);
  let at = rounds[0];
  const go = (round, height, pointer) => {
    at = round;
    const text = describe(round, height);
    line.setAttribute('x1', x(round));
    line.setAttribute('x2', x(round));
    line.setAttribute('visibility', 'visible');
    drawing.setAttribute('aria-valuenow', round);
    drawing.setAttribute('aria-valuetext', text);
    const box = drawing.getBoundingClientRect();
    tell(text, pointer ? pointer.clientX : box.left + x(round), pointer ? pointer.clientY : box.top + top);
  };
  const leave = () => { line.setAttribute('visibility', 'hidden'); hush(); };
  const near = (place) => rounds.reduce((best, round) =>
    (Math.abs(x(round) - place) < Math.abs(x(best) - place) ? round : best), rounds[0]);
  make(drawing, {
    role: 'slider', tabindex: 0, 'aria-label': label, 'aria-valuemin': rounds[0],
    'aria-valuemax': rounds[rounds.length - 1], 'aria-valuenow': at, 'aria-valuetext': describe(at, null),
    onpointermove: (event) => {
      const box = drawing.getBoundingClientRect();
      go(near(event.clientX - box.left), event.clientY - box.top, event);
    },
    onpointerleave: leave,
    onblur: leave,
    onkeydown: (event) => {
      const i = rounds.indexOf(at);
      const to = { ArrowLeft: i - 1, ArrowDown: i - 1, ArrowRight: i + 1, ArrowUp: i + 1, Home: 0,
        End: rounds.length - 1, PageUp: i + 10, PageDown: i - 10 }[event.key];
      if (event.key === 'Escape') leave();
      if (to === undefined) return;
      event.preventDefault();
      go(rounds[Math.max(0, Math.min(rounds.length - 1, to))], null, null);
    },
  }, []);
  return drawing;
}

// The run, and how its clusters are coloured: leaves in their order, those that were split in grey.
let run;
let look = {};
const state = { eps1: null, eps2: null, panels: 12, cards: 12, matrix: null, client: '', sort: ['name', 1] };

function prepare(content) {
  run = content;
  const children = new Map(run.clusters.map((cluster) => [cluster.name, cluster.children]));
  const clusters = new Map(run.clusters.map((cluster) => [cluster.name, cluster]));
  const leaves = run.clusters.filter((cluster) => !cluster.children.length).map((cluster) => cluster.name);
  const lines = new Map();
  run.lines.round.forEach((_, i) => {
    const cluster = run.lines.cluster[i];
    if (!lines.has(cluster)) lines.set(cluster, []);
    lines.get(cluster).push(i);
  });
  const order = new Map(leaves.map((name, i) => [name, i]));
  const home = run.clients.map((client) => client.cluster);
  look = { children, clusters, leaves, lines, order, home };
}
const colorOf = (name) => (look.order.has(name) ? `var(--c${look.order.get(name) % 6})` : 'var(--inner)');
const dashOf = (name) => [null, '6 3', '2 3', '9 3 2 3'][Math.floor((look.order.get(name) ?? 0) / 6) % 4];
const swatch = (color) => html('i', { class: 'swatch', style: { background: color } });
const clientName = (i) => run.clients[i].name;
