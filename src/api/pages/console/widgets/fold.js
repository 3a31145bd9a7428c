// Filters on a phone: only the first field is shown until the others are asked for.

import { element } from "../dom.js";

/** Returns the button that shows the other fields of its form. Wider screens have no need of it. */
export function foldButton(isOpen) {
  const button = element("button", { type: "button", className: "plain fold", ariaExpanded: String(isOpen) }, "Filters");
  button.addEventListener("click", () => { button.ariaExpanded = String(button.ariaExpanded !== "true"); });
  return button;
}
