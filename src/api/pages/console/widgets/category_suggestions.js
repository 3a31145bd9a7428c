// Suggestions of categories for an input: the service has no list of them, so those of the newest pets, and those typed before.

import { json } from "../api.js";
import { element } from "../dom.js";

/** Number of pets that are read. */
const READ = 100;

/** Returns the list of suggestions of an input, to be put beside it, which is read when the input gets the focus first. */
export function categorySuggestions(input) {
  const list = element("datalist", { id: `${input.id}-suggestions` });
  const names = new Set();
  input.setAttribute("list", list.id);
  const show = () => list.replaceChildren(...[...names].toSorted().map((value) => element("option", { value })));

  async function read() {
    // Without suggestions, any category can still be typed.
    const pets = await json("GET", `pet?sort=-created&limit=${READ}`).catch(() => []);
    for (const { category } of pets) if (category?.name) names.add(category.name);
    show();
  }

  input.addEventListener("focus", read, { once: true });
  input.addEventListener("change", () => {
    const name = input.value.trim();
    if (name) names.add(name);
    show();
  });
  return list;
}
