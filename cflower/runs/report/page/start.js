// Start
function drawAll(content) {
  hush();
  prepare(content);
  drawFacts();
  drawTree();
  drawNorms();
  drawAccuracy();
  drawSimilarity();
  drawClients();
  drawData();
  drawProblems();
  drawConfig();
}

const root = document.documentElement;
const darkNow = () => (root.style.colorScheme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
const themed = () => byId('theme').setAttribute('aria-pressed', String(darkNow()));
byId('theme').addEventListener('click', () => {
  root.style.colorScheme = darkNow() ? 'light' : 'dark';
  themed();
  drawSimilarity();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { themed(); drawSimilarity(); });
themed();
drawAll(JSON.parse(byId('content').textContent));
