// A failure: what happened and, where that can help, a button to try again.

import { element, formatDuration } from "../dom.js";

/** Statuses after which trying again can help; 0 is that of no response. */
const TEMPORARY = [0, 429, 503];
/** Time after which a view is loaded again, which doubles up to the longest one, in seconds. */
const [SHORTEST_PAUSE, LONGEST_PAUSE] = [2, 60];

/** Returns the failure of a change. Only after a refusal by a limit, it is made again by itself. */
export function problem(failure, retry) {
  return temporary(failure, retry, failure.retryAfter);
}

/** Returns the failure to load a view or a part of it, which is loaded again by itself. `load` gets the pause before the time after. */
export function loadProblem(failure, load, pause = SHORTEST_PAUSE) {
  const again = () => load(Math.min(2 * pause, LONGEST_PAUSE));
  return temporary(failure, again, failure.retryAfter || pause);
}

function temporary(failure, retry, seconds) {
  const countdown = element("span", { className: "quiet" });
  const helps = TEMPORARY.includes(failure.status);
  const content = element("div", { className: "failure" },
    element("p", { className: "problem", attributes: { role: "alert" } }, failure.message),
    helps && element("button", { className: "plain", type: "button", on: { click: () => retry() } }, "Try again"), countdown);
  if (helps && seconds) countDown(seconds, content, countdown, retry);
  return content;
}

/** Shows how many seconds are left, and then retries, unless the content is no longer shown. */
function countDown(seconds, content, countdown, retry) {
  const until = Date.now() + seconds * 1_000;
  const tell = (left) => { countdown.textContent = `Trying again in ${formatDuration(left)} …`; };
  const timer = setInterval(() => {
    const left = Math.ceil((until - Date.now()) / 1_000);
    if (left > 0 && content.isConnected) return tell(left);
    clearInterval(timer);
    if (content.isConnected) retry();
  }, 1_000);
  tell(seconds);
}
