// A secret that is shown once, with a button that copies it.

import { element } from "../dom.js";
import { ask } from "./dialog.js";

/** Shows a secret until it is copied, or the person closes it without a copy. */
export async function showSecret(title, secret) {
  let isCopied = false;
  const copied = element("span", { className: "quiet", attributes: { role: "status" } });
  const text = element("code", {}, secret);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(secret);
      isCopied = true;
      copied.textContent = "Copied.";
    } catch {
      // Without HTTPS, pages of other hosts than this machine have no clipboard.
      getSelection().selectAllChildren(text);
      copied.textContent = "Copy the selected text.";
    }
  };
  const copiedByHand = () => { isCopied ||= getSelection().toString().includes(secret); };
  const content = [
    element("p", {}, "Copy it now: it is not shown again."),
    element("p", { className: "secret", on: { copy: copiedByHand } }, text),
    element("p", {}, element("button", { type: "button", className: "plain", on: { click: copy } }, "Copy"), " ", copied),
  ];
  do await ask(title, content, { Done: true }); while (!isCopied && !(await closes()));
}

async function closes() {
  const question = [element("p", {}, "It is not shown again, and you have not copied it.")];
  return (await ask("Close without a copy?", question, { "Close without a copy": true, "Show it again": false })) === true;
}
