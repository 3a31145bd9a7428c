// A secret that is shown once, with a button that copies it.

import { element } from "../dom.js";
import { ask } from "./dialog.js";

export function showSecret(title, secret) {
  const copied = element("span", { className: "quiet", attributes: { role: "status" } });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(secret);
      copied.textContent = "Copied.";
    } catch {
      // Without HTTPS, pages of other hosts than this machine have no clipboard.
      copied.textContent = "Select the text and copy it.";
    }
  };
  return ask(title, [
    element("p", {}, "Copy it now: it is not shown again."),
    element("p", { className: "secret" }, element("code", {}, secret)),
    element("p", {}, element("button", { type: "button", className: "plain", on: { click: copy } }, "Copy"), " ", copied),
  ], { Done: true });
}
