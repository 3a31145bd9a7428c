// A failure: what happened and, where that can help, a button to try again.

import { element, formatDuration } from "../dom.js";

/** Statuses after which trying again can help; 0 is that of no response. */
const TEMPORARY = [0, 429, 503];
/** Text of a failure because of an order. */
const HELD = /^Pet (\d+) has an open order/;
/** Time after which a view is loaded again, which doubles up to the longest one, in seconds. */
const [SHORTEST_PAUSE, LONGEST_PAUSE] = [2, 60];

/** Returns the failure of a change. It is never made again by itself: the person may have edited the form meanwhile. */
export function problem(failure, retry) {
  const [content, countdown] = failed(failure, retry);
  const tell = (left) => { countdown.textContent = left > 0 ? `You can try again in ${formatDuration(left)}.` : "You can try again now."; };
  if (failure.retryAfter > 0) countDown(failure.retryAfter, content, tell);
  return content;
}

/** Returns the failure to load a view or a part of it, which is loaded again by itself. `load` gets the pause before the time after. */
export function loadProblem(failure, load, pause = SHORTEST_PAUSE) {
  const again = () => load(Math.min(2 * pause, LONGEST_PAUSE));
  const [content, countdown] = failed(failure, again);
  const tell = (left) => {
    if (left <= 0) return again();
    countdown.textContent = `Trying again in ${formatDuration(left)} …`;
  };
  if (isTemporary(failure)) countDown(failure.retryAfter || pause, content, tell);
  return content;
}

/** Returns true if trying again can help. */
export const isTemporary = ({ status }) => TEMPORARY.includes(status);

/** Returns the text of a failure, with a button that calls `retry`, and the place of a countdown. */
function failed(failure, retry) {
  const countdown = element("span", { className: "quiet" });
  const held = HELD.exec(failure.message);
  const content = element("div", { className: "failure" },
    element("p", { className: "problem", attributes: { role: "alert" } }, failure.message,
      held && " ", held && element("a", { href: `#/orders?pet=${held[1]}` }, "Show it")),
    isTemporary(failure) && element("button", { className: "plain", type: "button", on: { click: () => retry() } }, "Try again"), countdown);
  return [content, countdown];
}

/** Tells how many seconds are left until none is, while the content is shown. */
function countDown(seconds, content, tell) {
  const until = Date.now() + seconds * 1_000;
  const timer = setInterval(() => {
    const left = Math.ceil((until - Date.now()) / 1_000);
    if (left <= 0 || !content.isConnected) clearInterval(timer);
    if (content.isConnected) tell(left);
  }, 1_000);
  tell(seconds);
}
