// Questions and large pictures in front of the page. Escape closes them without a choice.

import { element } from "../dom.js";

/**
 * Shows `content` with a button for each of `choices`, whose keys are their texts, and returns the value of the chosen one,
 * or undefined.
 */
export function ask(title, content, choices) {
  const dialog = element("dialog", { ariaLabel: title },
    element("h2", {}, title), ...content,
    element("form", { method: "dialog", className: "choices" },
      ...Object.keys(choices).map((text, place) =>
        element("button", { value: text, className: place === 0 ? "" : "plain" }, text))));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(choices[dialog.returnValue]);
    });
  });
}
