// Form with the fields of a pet that people edit.

import { element, field } from "../dom.js";
import { STATUSES } from "./inventory.js";

/** Returns the form; `submit` gets the pet with the entered fields. `actions` are further buttons. */
export function petForm(pet, submit, ...actions) {
  const name = element("input", { id: "name", required: true, maxLength: 500, value: pet.name ?? "", autocomplete: "off" });
  const category = element("input", { id: "category", maxLength: 500, value: pet.category?.name ?? "", autocomplete: "off" });
  const tags = element("input", { id: "tags", value: namesOf(pet.tags ?? []), autocomplete: "off" });
  const status = element("select", { id: "state" },
    ...STATUSES.map((it) => element("option", { selected: it === pet.status }, it)));
  const form = element("form", { id: "pet-form", className: "card" },
    field("Name", name), field("Status", status), field("Category", category),
    field("Tags, with commas between", tags),
    element("div", { className: "choices" }, element("button", {}, "Save"), ...actions));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit({
      name: name.value,
      status: status.value,
      category: labelled(category.value, pet.category ? [pet.category] : [])[0] ?? null,
      tags: labelled(tags.value, pet.tags ?? []),
    });
  });
  return form;
}

/** Returns the names of tags, as the form has them. */
export const namesOf = (tags) => tags.map(({ name }) => name).filter(Boolean).join(", ");

/** Returns a category or tag for each name. Those of `known` keep their numbers. */
function labelled(names, known) {
  const entered = names.split(",").map((name) => name.trim()).filter(Boolean);
  return entered.map((name) => known.find((it) => it.name === name) ?? { name });
}
