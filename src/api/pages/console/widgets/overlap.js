// The question how long an old secret stays valid after its rotation.

import { element } from "../dom.js";
import { ask } from "./dialog.js";

const HOUR = 3_600;

/** Returns the time in seconds, or undefined if the person closes the question. */
export function askOverlap(title, question) {
  return ask(title, [element("p", {}, question)], { "1 day": 24 * HOUR, "1 hour": HOUR, "Not at all": 0 });
}
