// Suggestions of tags that are in use, for an input.

import { json } from "../api.js";
import { element } from "../dom.js";

/** Time without typing after which suggestions are read, in milliseconds. */
const PAUSE = 200;

/** Maximum number of names in a response. */
export const MAX_SUGGESTED = 20;

/** Returns names of tags that begin with `prefix`. */
export const tagsThatBegin = (prefix, signal) => json("GET", `pet/tags?${new URLSearchParams({ prefix })}`, { signal });

/** Returns the list of suggestions of an input, to be put beside it, which is filled as one types. */
export function tagSuggestions(input) {
  const list = element("datalist", { id: `${input.id}-suggestions` });
  input.setAttribute("list", list.id);
  let timer;
  let reading = new AbortController();

  async function suggest() {
    const prefix = input.value.trim();
    // A suggestion that was chosen is complete.
    if (prefix === "" || [...list.options].some(({ value }) => value === input.value)) return;
    reading = new AbortController();
    const { signal } = reading;
    // Without suggestions, any tag can still be typed.
    const names = await tagsThatBegin(prefix, signal).catch(() => []);
    if (!signal.aborted) list.replaceChildren(...names.map((value) => element("option", { value })));
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    reading.abort();
    timer = setTimeout(suggest, PAUSE);
  });
  return list;
}
