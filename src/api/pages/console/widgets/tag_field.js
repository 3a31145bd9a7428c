// Tags of a pet: each one can be removed, and an input adds one.

import { element, field } from "../dom.js";
import { tagLinks } from "./pet_card.js";
import { tagSuggestions } from "./tag_suggestions.js";

const MAX_LENGTH = 255;

/** Returns the field, and a function that returns the tags: the text that is still in the input is one, too. */
export function tagField(tags) {
  let chosen = tags;
  const list = element("ul", { id: "tag-list", className: "chips", ariaLabel: "Tags of this pet" });
  const input = element("input", { id: "tags", maxLength: MAX_LENGTH, autocomplete: "off" });

  function show() {
    // A tag without a name stays, and is not shown.
    list.replaceChildren(...chosen.filter(({ name }) => name).map(chip));
  }

  function chip(tag) {
    const button = element("button", {
      type: "button", className: "plain", value: tag.name, ariaLabel: `Remove tag ${tag.name}`, on: { click: () => remove(tag) },
    }, "✕");
    return element("li", {}, element("span", { title: tag.name }, ...tagLinks([tag])), button);
  }

  function remove(tag) {
    const buttons = [...list.querySelectorAll("button")];
    const place = buttons.indexOf(document.activeElement);
    chosen = chosen.filter((it) => it !== tag);
    show();
    const left = list.querySelectorAll("button");
    (left[Math.min(place, left.length - 1)] ?? input).focus();
  }

  function add() {
    const name = input.value.trim();
    input.value = "";
    if (!name || chosen.some((it) => it.name === name)) return;
    chosen = [...chosen, { name }];
    show();
  }

  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || input.value.trim() === "") return;
    event.preventDefault();
    add();
  });
  const button = element("button", { type: "button", className: "plain", on: { click: () => { add(); input.focus(); } } }, "Add");
  show();
  const content = element("div", { className: "tags" }, field("Add a tag", input), button, tagSuggestions(input), list);
  return [content, () => {
    add();
    return chosen;
  }];
}
