// A failure: what happened, and a button to try again. After a refusal by a limit, it is tried again by itself.

import { element, formatDuration } from "../dom.js";

export function problem(failure, retry) {
  const countdown = element("span", { className: "quiet" });
  const content = element("div", { className: "failure" },
    element("p", { className: "problem", attributes: { role: "alert" } }, failure.message),
    element("button", { className: "plain", type: "button", on: { click: retry } }, "Try again"), countdown);
  if (failure.retryAfter) countDown(failure.retryAfter, content, countdown, retry);
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
