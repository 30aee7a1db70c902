// Start
function drawAll(content) {
  hideTip();
  prepare(content);
  readAddress();
  byId('tree-section').hidden = run.run.kind !== 'clustered';
  drawFacts();
  drawSaves();
  drawPicked();
  drawProblems();
  drawConfig();
}

const root = document.documentElement;
const darkNow = () => (root.style.colorScheme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
const themed = () => { byId('theme').textContent = darkNow() ? 'Switch to light' : 'Switch to dark'; };
byId('theme').addEventListener('click', () => {
  root.style.colorScheme = darkNow() ? 'light' : 'dark';
  themed();
  drawSimilarity();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { themed(); drawSimilarity(); });
addEventListener('hashchange', () => {
  readAddress();
  drawPicked();
  byId(`${state.at}-title`)?.scrollIntoView();
});
themed();
drawAnchors();
drawAll(JSON.parse(byId('content').textContent));
byId(`${state.at}-title`)?.scrollIntoView();
