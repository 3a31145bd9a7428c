// A line about what has just been done, which screen readers read. It leaves with its view, and covers nothing that a person works on.

const line = document.getElementById("announcement");
/** Time for which it is shown, in milliseconds. */
const SHOWN = 6_000;
let timer;
let isForNextView = false;

export function announce(text, forNextView = false) {
  clearTimeout(timer);
  isForNextView = forNextView;
  line.textContent = text;
  timer = setTimeout(() => { line.textContent = ""; }, SHOWN);
  // Once the focus is where it goes to.
  setTimeout(place);
}

/** Takes the line away with the view that is left, unless it is for the next one. */
export function leaveAnnouncement() {
  if (!isForNextView) announce("");
  isForNextView = false;
}

/** Moves the line to the top while it would cover the control that has the focus, or the bar at the bottom. */
function place() {
  line.className = "";
  const own = line.getBoundingClientRect();
  const isCovered = (it) => {
    const { top, bottom, right } = it.getBoundingClientRect();
    return bottom > own.top && top < own.bottom && right > own.left;
  };
  const used = [document.querySelector("#many:not([hidden])"), document.activeElement?.closest("a, button, input, select, summary")];
  if (used.some((it) => it && isCovered(it))) line.className = "above";
}

document.addEventListener("focusin", place);
