// Start
function drawAll(content) {
  hideTip();
  prepare(content);
  readAddress();
  const clustered = run.run.kind === 'clustered';
  byId('clients-title').firstChild.textContent = clustered ? 'Which clusters are there, and who is in them?' : 'Who took part?';
  byId('data-title').firstChild.textContent = clustered && look.leaves.length > 1 ? 'What differs between them?' : 'What data do the clients have?';
  drawn('facts', drawFacts);
  drawn('together', drawTogether);
  drawn('methods', drawMethods);
  drawn('evenly', drawEvenly);
  drawn('saves', drawSaves);
  drawPicked();
  drawn('cost', drawCost, 'cost');
  drawn('problems', drawProblems, 'problems', 'heard');
  drawn('config', drawConfig);
}

const root = document.documentElement;
const darkNow = () => (root.style.colorScheme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
const themed = () => { byId('theme').textContent = darkNow() ? 'Switch to light' : 'Switch to dark'; };
byId('theme').addEventListener('click', () => {
  root.style.colorScheme = darkNow() ? 'light' : 'dark';
  themed();
  drawn('similarity', drawSimilarity, 'matrices');
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { themed(); drawn('similarity', drawSimilarity, 'matrices'); });
addEventListener('hashchange', () => {
  readAddress();
  drawPicked();
  byId(`${state.at}-title`)?.scrollIntoView();
});
themed();
drawAnchors();
drawAll(JSON.parse(byId('content').textContent));
// A page that is loaded again keeps its place.
const again = performance.getEntriesByType('navigation')[0]?.type === 'reload';
const { place } = history.state ?? {};
if (again && known(place)) scrollTo(0, place);
if (!again) byId(`${state.at}-title`)?.scrollIntoView();
