// Drawing
//
// The few tools that all pictures share. Text only ever goes in as text (`textContent`), so a name
// that looks like HTML is shown as it is.
const byId = (id) => document.getElementById(id);

function make(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'style') Object.assign(node.style, value);
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (known(value) && value !== false) node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(2).filter((child) => known(child) && child !== false));
  return node;
}
const html = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  make(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
// A part is filled and its pictures are drawn in one step, so that it is never shown without them.
function fill(id, ...children) {
  const part = byId(id);
  part.replaceChildren(...children.flat(2).filter((child) => child));
  for (const stage of part.querySelectorAll('.stage')) /** @type {any} */ (stage).redraw();
}
const folded = (summary, ...content) => html('details', {}, html('summary', {}, summary), ...content);
// What stands between backticks is a command.
const marked = (text) => text.split('`').map((part, i) => (i % 2 ? html('code', {}, part) : part));
const note = (...text) => html('p', { class: 'note' }, ...text);
const button = (text, onclick, attributes = {}) => html('button', { type: 'button', onclick, ...attributes }, text);

const known = (value) => value !== null && value !== undefined;
const figure = (value, digits = 3) => (known(value) ? String(Number(value.toPrecision(digits))).replace('-', '−') : '–');
const percent = (value, digits = 1) => (known(value) ? `${(value * 100).toFixed(digits)}%` : '–');
const counted = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;
const natural = new Intl.Collator('en', { numeric: true });
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The metric of the run: accuracies as percentages, others as plain numbers.
const metric = () => run.run.metric;
const score = (value, digits = 1) => (metric().percent ? percent(value, digits) : figure(value, 4));
const signed = (gain) => (known(gain) ? `${gain < 0 ? '−' : '+'}${
  metric().percent ? (Math.abs(gain) * 100).toFixed(1) : figure(Math.abs(gain))}` : '–');
const better = (gain) => (metric().higher_is_better ? gain : -gain);

function listed(names, most = 8) {
  if (names.length <= most) return names.join(', ');
  return `${names.slice(0, most).join(', ')} and ${names.length - most} more`;
}

// A part that cannot be made or drawn is one sentence in its place, and the others are drawn.
const undrawn = (error) => note(`This part of the report could not be drawn: ${error.message}.`);
function drawn(id, draw, ...parts) {
  const sentences = parts.filter((part) => run.failed[part]).map((part) => note(run.failed[part]));
  if (sentences.length) return fill(id, sentences);
  try { return draw(); } catch (error) { return fill(id, undrawn(error)); }
}

// A picture is drawn anew at the width it has, so that its text keeps its size on a phone, and where
// it is folded away, once it is opened.
const watched = new ResizeObserver((entries) => {
  for (const { target } of entries) /** @type {any} */ (target).redraw();
});
function picture(name, draw, attributes = {}) {
  const stage = html('div', { class: 'stage' });
  let width = 0;
  stage.redraw = () => {
    const now = Math.floor(stage.clientWidth);
    if (now > 40 && now !== width) {
      keepFocus(() => {
        try { stage.replaceChildren(draw((width = now))); } catch (error) { stage.replaceChildren(undrawn(error)); }
      });
    }
  };
  watched.observe(stage);
  return html('div', attributes, stage, saveButtons(name, () => stage.firstChild));
}

// A table that is larger than its box says in which direction there is more.
const boxes = new ResizeObserver((entries) => {
  for (const { target } of entries) /** @type {any} */ (target).say?.();
});
function scrolling(label, ...parts) {
  const box = /** @type {any} */ (html('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': label }, html('table', {}, ...parts)));
  const hint = html('p', { class: 'more-of', hidden: true });
  box.say = box.firstChild.say = () => {
    const more = [box.scrollWidth > box.clientWidth + 1 && 'sideways for more columns', box.scrollHeight > box.clientHeight + 1 && 'down for more rows'].filter(Boolean);
    hint.hidden = !more.length;
    hint.textContent = `↔ Scroll this table ${more.join(' and ')}.`.replace('↔ Scroll this table down', '↕ Scroll this table down');
  };
  boxes.observe(box);
  boxes.observe(box.firstChild);
  return html('div', {}, hint, box);
}

// Whoever works with the keyboard stays where they are when a part of the page is drawn anew.
function keepFocus(draw) {
  const key = document.activeElement?.getAttribute('data-key');
  draw();
  if (!key || document.activeElement?.getAttribute('data-key') === key) return;
  /** @type {HTMLElement | null} */ (document.querySelector(`[data-key="${CSS.escape(key)}"]`))?.focus({ preventScroll: true });
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
function axes({ x, y = null, rounds, values = [], left, right, bottom, name = figure, free = 0 }) {
  const parts = values.map((value) => svg('g', {},
    svg('line', { class: 'grid', x1: left, x2: right, y1: y(value), y2: y(value) }),
    svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end' }, name(value))));
  const whole = ticks(rounds[0], rounds[1], Math.max(2, (right - left) / 70)).filter(Number.isInteger);
  for (const round of whole.filter((at) => x(at) <= right - free)) {
    parts.push(svg('text', { x: x(round), y: bottom + 15, 'text-anchor': 'middle' }, String(round)));
  }
  parts.push(svg('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }),
    svg('text', { x: left - 10, y: bottom + 15, 'text-anchor': 'end' }, 'round'));
  return svg('g', { 'aria-hidden': 'true' }, parts);
}

function path(points) {
  let d = '';
  let pen = false;
  for (const [x, y] of points) {
    if (!known(y) || Number.isNaN(y)) pen = false;
    else { d += `${pen ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`; pen = true; }
  }
  return d;
}
const diamond = (x, y, r) => `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`;

// What is under the pointer or the finger, or at the keyboard's cursor, is shown in one floating box.
function showTip(text, x, y) {
  const tip = byId('tip');
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${y - height - 12 < 4 ? y + 18 : y - height - 12}px`;
}
const hideTip = () => { byId('tip').hidden = true; };
// A finger leaves at once; what it asked for stays until it touches something else.
const leaving = (event) => { if (event.pointerType !== 'touch') hideTip(); };
document.addEventListener('pointerdown', (event) => {
  if (!(/** @type {Element} */ (event.target).closest('svg, .sample'))) hideTip();
});
document.addEventListener('scroll', hideTip, { passive: true });
function onPointer(node, act) {
  for (const kind of ['pointermove', 'pointerdown']) node.addEventListener(kind, act);
  node.addEventListener('pointerleave', leaving);
  return node;
}
// A part of a picture is a button to the keyboard, too.
const onEnter = (act) => (event) => {
  if (event.key !== 'Enter' && event.key !== ' ') return;
  event.preventDefault();
  act();
};
const withTip = (node, text) => onPointer(node, (event) => showTip(text, event.clientX, event.clientY));

// A picture along steps (rounds, or the rows of a matrix) is a slider to the keyboard and to a screen
// reader: its value is the step, read out with everything the box says. A click or Enter picks it.
function along(drawing, { key, label, steps, nearest, mark, describe, pick: choose }) {
  let at = steps[0];
  const go = (step, place, pointer) => {
    at = step;
    const text = describe(step, place);
    mark(step);
    drawing.setAttribute('aria-valuenow', step);
    drawing.setAttribute('aria-valuetext', text);
    const box = drawing.getBoundingClientRect();
    showTip(text, pointer ? pointer.clientX : box.left + 40, pointer ? pointer.clientY : box.top + 10);
  };
  const leave = () => { mark(null); hideTip(); };
  const where = (event) => {
    const box = drawing.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  make(drawing, {
    'data-key': key, role: 'slider', tabindex: 0, 'aria-label': label, 'aria-valuemin': steps[0],
    'aria-valuemax': steps[steps.length - 1], 'aria-valuenow': at, 'aria-valuetext': describe(at, null),
    onclick: (event) => choose(nearest(where(event)), where(event)),
    onblur: leave,
    onkeydown: (event) => {
      const i = steps.indexOf(at);
      const to = { ArrowLeft: i - 1, ArrowDown: i - 1, ArrowRight: i + 1, ArrowUp: i + 1, Home: 0,
        End: steps.length - 1, PageUp: i + 10, PageDown: i - 10 }[event.key];
      if (event.key === 'Escape') leave();
      if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); choose(at, null); }
      if (to === undefined) return;
      event.preventDefault();
      go(steps[Math.max(0, Math.min(steps.length - 1, to))], null, null);
    },
  }, []);
  onPointer(drawing, (event) => go(nearest(where(event)), where(event), event));
  drawing.addEventListener('pointerleave', (event) => { if (event.pointerType !== 'touch') mark(null); });
  return drawing;
}

function overRounds(drawing, { key, label, rounds, x, top, bottom, describe, pick: choose = null }) {
  const ruler = (attributes) => svg('line', { y1: top, y2: bottom, 'pointer-events': 'none', ...attributes });
  const line = ruler({ class: 'axis', visibility: 'hidden' });
  drawing.append(line);
  if (rounds.includes(state.round)) drawing.append(ruler({ class: 'picked', x1: x(state.round), x2: x(state.round) }));
  return along(drawing, { key, label, steps: rounds, describe,
    nearest: ([place]) => rounds.reduce((best, round) =>
      (Math.abs(x(round) - place) < Math.abs(x(best) - place) ? round : best), rounds[0]),
    mark: (round) => {
      line.setAttribute('visibility', round === null ? 'hidden' : 'visible');
      if (round !== null) for (const end of ['x1', 'x2']) line.setAttribute(end, x(round));
    },
    pick: (round, place) => (choose?.(round, place) ? null : pick({ round: state.round === round ? null : round })) });
}

// The run, and how its clusters are coloured: leaves in their order, those that were split in grey.
// Up to six leaves have colours that stay apart for everyone; with more of them, each still has one
// of its own, and names tell them apart.
let run;
let look;

function prepare(content) {
  run = { ...content, moves: content.moves.map(({ server_round: round, origin: from, target: to, ...move }) => ({ ...move, round, from, to })) };
  const clusters = new Map(run.clusters.map((cluster) => [cluster.name, cluster]));
  const leaves = run.clusters.filter((cluster) => !cluster.children.length).map((cluster) => cluster.name);
  const lines = new Map();
  run.lines.round.forEach((_, i) => {
    const cluster = run.lines.cluster[i];
    if (!lines.has(cluster)) lines.set(cluster, []);
    lines.get(cluster).push(i);
  });
  const order = new Map(leaves.map((name, i) => [name, i]));
  // How many clients Algorithm 4 has not placed yet, by round; empty if all have a place at once.
  const waiting = new Map();
  run.lines.round.forEach((round, i) => waiting.set(round, (waiting.get(round) ?? 0) + (run.lines.unplaced[i] ?? 0)));
  look = { waiting: new Map([...waiting].filter(([, number]) => number)), clusters, leaves, lines, order, home: run.clients.map((client) => client.cluster),
    members: new Map(run.clusters.map((cluster) => [cluster.name, new Set(cluster.members)])) };
}
function colorOf(name) {
  if (run.run.kind !== 'clustered') return 'var(--only)';
  if (!look.order.has(name)) return 'var(--inner)';
  const [i, n] = [look.order.get(name), look.leaves.length];
  if (n <= 6) return `var(--c${i})`;
  const hue = Math.round((250 + (i * 360) / n) % 360);
  return `light-dark(hsl(${hue} 70% ${i % 2 ? 30 : 46}%), hsl(${hue} 75% ${i % 2 ? 80 : 60}%))`;
}
const swatch = (color) => html('i', { class: 'swatch', style: { background: color } });
const clientName = (i) => run.clients[i].name;
// Whether a cluster came out of the picked one, or is it.
const isWithin = (name) => state.cluster === '' || look.clusters.get(name).members.every((client) => isMember(client, state.cluster));
const isMember = (client, cluster) => cluster === '' || (look.members.get(cluster)?.has(client) ?? false);
const wasIn = (client, cluster) => isMember(client, cluster) || run.moves.some((move) => move.client === client && move.from === cluster);
