// While the run goes on
//
// Only in the page that `cflower watch` serves: asks now and then whether there is a new round, or a
// baseline after the last one. What one has set (thresholds, order, client) stays as it is.
let version = null;
let shown = byId('content').textContent;
const toCome = () => !run.run.finished || run.run.ways.some(({ remark }) => remark === 'measured next');
const news = ({ finished, rounds, ways }) => [finished ? 'The run has finished.' : `Round ${rounds} is in.`,
  ...ways.filter(({ against }) => against).map(({ words }) => `Measured: ${words}.`)].join(' ');
async function lookAgain() {
  try {
    const answer = await fetch('content', { headers: version ? { 'If-None-Match': version } : {}, cache: 'no-store' });
    if (answer.status === 200) {
      version = answer.headers.get('ETag');
      const text = await answer.text();
      if (text !== shown) {
        const [x, y] = [scrollX, scrollY];
        const before = news(run.run);
        shown = text;
        keepFocus(() => drawAll(JSON.parse(text)));
        scrollTo(x, y);
        if (news(run.run) !== before) byId('status').textContent = news(run.run);
      }
    }
  } catch { byId('status').textContent = 'The server of this page has stopped.'; }
  if (toCome()) setTimeout(lookAgain, 1500);
}
setTimeout(lookAgain, 1500);
