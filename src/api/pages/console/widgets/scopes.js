// Choice of scopes.

import { element } from "../dom.js";

const SCOPES = ["read:pets", "write:pets", "read:orders", "write:orders", "read:changes", "admin"];

/** Returns a group of boxes, one for each scope of `offered`, and a function that returns the chosen ones. */
export function scopeBoxes(chosen, offered = SCOPES) {
  const boxes = offered.map((scope) => element("input", { type: "checkbox", value: scope, checked: chosen.includes(scope) }));
  const group = element("fieldset", {}, element("legend", {}, "Scopes"),
    ...boxes.map((box) => element("label", {}, box, ` ${box.value}`)));
  return [group, () => boxes.filter(({ checked }) => checked).map(({ value }) => value)];
}
