// Requests that are repeated until a limit allows them, or a failure has passed.

import { formatDuration, wait } from "../dom.js";
import { announce } from "./announcement.js";
import { isTemporary } from "./problem.js";

/** Number of times that a request is repeated after a failure that can pass, other than a limit. */
export const REPETITIONS = 3;
/** Pause before that, in milliseconds. */
const AGAIN = 2_000;

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
