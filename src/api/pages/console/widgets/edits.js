// Edits of forms that are not saved: people are asked before they lose them.

import { element } from "../dom.js";
import { ask } from "./dialog.js";

/** States of the forms without edits. */
const states = new WeakMap();

/** Takes the state of a form as the one without edits, and returns the form. */
export function watchEdits(form) {
  states.set(form, stateOf(form));
  return form;
}

/** Returns true if a form of the page, other than `except`, has edits. */
export function hasEdits(except) {
  return [...document.forms].some((form) => form !== except && states.has(form) && states.get(form) !== stateOf(form));
}

/** Returns true if there are no edits, other than those of `except`, or the person gives them up. */
export async function mayLoseEdits(except) {
  if (!hasEdits(except)) return true;
  const question = [element("p", {}, "Changes that are not saved, and uploads in progress, would be lost.")];
  return (await ask("Go on without saving?", question, { "Go on": true, "Back to the form": false })) === true;
}

/** Returns the members of `values` that differ from those of `stored`. The order of a list does not count. */
export function changed(values, stored) {
  const text = (value) => JSON.stringify(Array.isArray(value) ? value.toSorted() : value);
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => text(value) !== text(stored[name])));
}

/** Goes to another view, without a question about edits. */
export function leaveFor(hash) {
  for (const form of document.forms) states.delete(form);
  location.hash = hash;
}

/** Returns what is chosen and typed in a form, as a text to compare. */
export const stateOf = (form) => JSON.stringify([...form.elements].map(({ checked, value }) => [checked, value]));
