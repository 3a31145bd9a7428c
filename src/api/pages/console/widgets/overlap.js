// The question how long an old secret stays valid after its rotation.

import { element } from "../dom.js";
import { ask } from "./dialog.js";

const HOUR = 3_600;

/** Returns the time in seconds, or undefined if the person cancels or closes the question. */
export async function askOverlap(title, question) {
  const choices = { "1 day": 24 * HOUR, "1 hour": HOUR, "Not at all": 0, Cancel: false };
  const chosen = await ask(title, [element("p", {}, question)], choices);
  return chosen === false ? undefined : chosen;
}
