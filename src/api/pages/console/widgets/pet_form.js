// Form with the fields of a pet that people edit.

import { element, field } from "../dom.js";
import { categorySuggestions } from "./category_suggestions.js";
import { watchEdits } from "./edits.js";
import { STATUSES } from "./inventory.js";
import { tagField } from "./tag_field.js";

/** Maximum number of characters that the service accepts. */
const MAX_LENGTH = 255;

/** Returns the form; `submit` gets the fields that were changed, the form, and the button that was pressed. `actions` are further buttons. */
export function petForm(pet, submit, ...actions) {
  const tagsBefore = pet.tags ?? [];
  const name = element("input", { id: "name", required: true, maxLength: MAX_LENGTH, value: pet.name ?? "", autocomplete: "off" });
  const category = element("input", { id: "category", maxLength: MAX_LENGTH, value: pet.category?.name ?? "", autocomplete: "off" });
  const [tagsShown, chosenTags] = tagField(tagsBefore);
  const status = element("select", { id: "state" },
    ...STATUSES.map((it) => element("option", { selected: it === pet.status }, it)));
  // An input has no line breaks, which a stored name may have.
  const [nameBefore, categoryBefore] = [name.value, category.value];
  const isNew = pet.id === undefined;
  const state = field("Status", status);
  if (isNew) name.setAttribute("data-focus", "");
  const form = element("form", { id: "pet-form", className: "card" },
    field("Name", name), !isNew && state, field("Category", category), categorySuggestions(category),
    tagsShown,
    // A new pet is mostly available: what is typed for it comes first.
    isNew && state,
    element("div", { className: "choices" }, element("button", { id: "save" }, "Save"), ...actions));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = category.value.trim();
    const tags = chosenTags();
    submit({
      ...(name.value !== nameBefore && { name: name.value }),
      ...(status.value !== pet.status && { status: status.value }),
      // Another name is another category, which the number does not belong to.
      ...(category.value !== categoryBefore && (text || pet.category) && { category: text ? { id: null, name: text } : null }),
      ...(!isSame(tags, tagsBefore) && { tags }),
    }, form, event.submitter);
  });
  return watchEdits(form);
}

const isSame = (one, other) => one.length === other.length && one.every((it, place) => it === other[place]);
