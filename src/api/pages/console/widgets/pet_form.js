// Form with the fields of a pet that people edit.

import { element, field } from "../dom.js";
import { STATUSES } from "./inventory.js";

/** Returns the form; `submit` gets the fields that were changed. `actions` are further buttons. */
export function petForm(pet, submit, ...actions) {
  const tagsBefore = pet.tags ?? [];
  const name = element("input", { id: "name", required: true, maxLength: 500, value: pet.name ?? "", autocomplete: "off" });
  const category = element("input", { id: "category", maxLength: 500, value: pet.category?.name ?? "", autocomplete: "off" });
  const tags = element("input", { id: "tags", value: namesOf(tagsBefore), autocomplete: "off" });
  const status = element("select", { id: "state" },
    ...STATUSES.map((it) => element("option", { selected: it === pet.status }, it)));
  const form = element("form", { id: "pet-form", className: "card" },
    field("Name", name), field("Status", status), field("Category", category),
    field("Tags, with commas between", tags),
    element("div", { className: "choices" }, element("button", {}, "Save"), ...actions));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = category.value.trim();
    submit({
      ...(name.value !== pet.name && { name: name.value }),
      ...(status.value !== pet.status && { status: status.value }),
      // Another name is another category, which the number does not belong to.
      ...(text !== (pet.category?.name ?? "") && { category: text ? { id: null, name: text } : null }),
      ...(tags.value !== namesOf(tagsBefore) && { tags: renamed(tags.value, tagsBefore) }),
    });
  });
  return form;
}

/** Returns the names of tags, as the form has them. */
export const namesOf = (tags) => tags.map(({ name }) => name).filter(Boolean).join(", ");

/** Returns a tag for each name, and the `tags` without a name. Known ones keep their numbers. */
function renamed(names, tags) {
  const entered = names.split(",").map((name) => name.trim()).filter(Boolean);
  return [...entered.map((name) => tags.find((it) => it.name === name) ?? { name }), ...tags.filter(({ name }) => !name)];
}
