// A choice of any number of names.

import { element } from "../dom.js";

/** Returns a group of boxes, one for each name of `offered`, and a function that returns the chosen ones. */
export function choiceBoxes(title, chosen, offered) {
  const boxes = offered.map((name) => element("input", { type: "checkbox", value: name, checked: chosen.includes(name) }));
  const group = element("fieldset", {}, element("legend", {}, title),
    ...boxes.map((box) => element("label", {}, box, ` ${box.value}`)));
  return [group, () => boxes.filter(({ checked }) => checked).map(({ value }) => value)];
}
