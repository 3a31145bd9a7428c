// Questions and large pictures in front of the page. Escape closes them without a choice.

import { element, keepFocus } from "../dom.js";

/** Choices that take something away for good. */
const DANGEROUS = ["Delete", "Remove", "Revoke"];

/**
 * Shows `content` with a button for each of `choices`, whose keys are their texts, and returns the value of the chosen one, or
 * undefined. A button whose value is false changes nothing, and has the focus at first.
 */
export function ask(title, content, choices) {
  const buttons = Object.entries(choices).map(([text, value], place) => {
    const look = place === 0 ? "" : "plain";
    return element("button", { value: text, autofocus: value === false, className: DANGEROUS.includes(text) ? "bad" : look }, text);
  });
  const dialog = element("dialog", { ariaLabel: title },
    element("h2", {}, title), ...content, element("form", { method: "dialog", className: "choices" }, ...buttons));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      // What opened it may have been replaced meanwhile.
      keepFocus(document.getElementById("main"));
      resolve(choices[dialog.returnValue]);
    });
  });
}
