// A line about what has just been done, which screen readers read.

const line = document.getElementById("announcement");
/** Time for which it is shown, in milliseconds. */
const SHOWN = 6_000;
let timer;

export function announce(text) {
  clearTimeout(timer);
  line.textContent = text;
  timer = setTimeout(() => { line.textContent = ""; }, SHOWN);
}
