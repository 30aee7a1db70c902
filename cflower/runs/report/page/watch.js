// While the run goes on
//
// Only in the page that `cflower watch` serves: asks now and then whether there is a new round. What
// one has set (thresholds, order, client) stays as it is.
let version = null;
async function lookAgain() {
  try {
    const answer = await fetch('content', { headers: version ? { 'If-None-Match': version } : {}, cache: 'no-store' });
    if (answer.status === 200) {
      version = answer.headers.get('ETag');
      const content = await answer.json();
      if (content.run.rounds !== run.run.rounds || content.run.finished !== run.run.finished) {
        const [x, y] = [scrollX, scrollY];
        fill('whatif');
        drawAll(content);
        scrollTo(x, y);
        byId('status').textContent = content.run.finished ? 'The run has finished.' : `Round ${content.run.rounds} is in.`;
      }
    }
  } catch { byId('status').textContent = 'The server of this page has stopped.'; }
  if (!run.run.finished) setTimeout(lookAgain, 1500);
}
setTimeout(lookAgain, 1500);
