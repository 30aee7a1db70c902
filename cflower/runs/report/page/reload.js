// While the run goes on
//
// Only in a page that is written during the run: reads the file again every ten seconds, but not while
// somebody works with the page. What is picked is in the address, what is opened in the history.
const EVERY = 10_000;
const WORKING = 5_000;
let used = 0;
for (const event of ['pointerdown', 'keydown']) addEventListener(event, () => { used = Date.now(); });
function readAgain() {
  const wait = used + WORKING - Date.now();
  if (wait > 0 || document.hidden) setTimeout(readAgain, Math.max(wait, 1_000));
  else {
    history.replaceState({ ...history.state, place: scrollY }, '');
    location.reload();
  }
}
byId('run-id').after(' (goes on: this page reloads itself)');
setTimeout(readAgain, EVERY);
