// Requests that are repeated until a limit allows them, or a failure has passed; and those that several changes share.

import { formatDuration, wait } from "../dom.js";
import { announce } from "./announcement.js";
import { isTemporary } from "./problem.js";

/** Number of times that a request is repeated after a failure that can pass, other than a limit. */
export const REPETITIONS = 3;
/** Pause before that, in milliseconds. */
const AGAIN = 2_000;
/** Time over which changes are collected, which doubles while more come, and the longest one, in milliseconds. */
const [COLLECT, LONGEST] = [300, 5_000];

/** Sends a request, and repeats it when a limit allows that, or after a failure that can pass, unless `isOver`. `note` shows for how long it waits. */
export async function patiently(request, note, isOver) {
  for (let repetitions = 0; ; repetitions += 1) {
    try {
      return await request();
    } catch (failure) {
      const mayPass = isTemporary(failure) && (failure.status === 429 || repetitions < REPETITIONS);
      if (!mayPass || isOver()) throw failure;
      if (failure.retryAfter > 0) {
        note.textContent = `The limit is reached; going on in ${formatDuration(failure.retryAfter)}.`;
        announce(note.textContent);
      }
      const until = Date.now() + (failure.retryAfter * 1_000 || AGAIN);
      while (Date.now() < until && !isOver()) await wait(100);
      if (isOver()) throw failure;
      note.textContent = "";
    }
  }
}

/** Returns a function that calls `refresh` soon, once for several calls, and again after it fails. */
export function soon(refresh, signal) {
  let [isChanged, isWaiting] = [false, false];
  return async () => {
    isChanged = true;
    if (isWaiting) return;
    isWaiting = true;
    for (let pause = COLLECT; isChanged && !signal.aborted; pause = Math.min(2 * pause, LONGEST)) {
      await wait(pause);
      // A change that is made here shows its outcome itself.
      if (document.getElementById("main").inert) continue;
      isChanged = false;
      const failure = await refresh().then(() => null, (it) => it);
      if (failure === null) continue;
      isChanged = true;
      await wait(failure.retryAfter * 1_000 || LONGEST);
    }
    isWaiting = false;
  };
}
