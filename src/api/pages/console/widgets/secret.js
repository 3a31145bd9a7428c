// A secret that is shown once, with what is used together with it; each can be copied.

import { element } from "../dom.js";
import { ask } from "./dialog.js";

/** Shows a secret, and `more` texts by their names, until the secret is copied, or the person closes it without a copy. */
export async function showSecret(title, secret, more = {}) {
  let isCopied = false;
  const copied = element("p", { className: "quiet", attributes: { role: "status" } });
  const copiedByHand = () => { isCopied ||= getSelection().toString().includes(secret); };

  /** Returns a text with a button that copies it. */
  function copyable(name, value, className) {
    const text = element("code", {}, value);
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(value);
        isCopied ||= value.includes(secret);
        copied.textContent = "Copied.";
      } catch {
        // Without HTTPS, pages of other hosts than this machine have no clipboard.
        getSelection().selectAllChildren(text);
        copied.textContent = "Copy the selected text.";
      }
    };
    return [
      name && element("p", { className: "label" }, name),
      element("p", { className, on: { copy: copiedByHand } }, text),
      element("p", {}, element("button", { type: "button", className: "plain", ariaLabel: name ? `Copy: ${name}` : "Copy", on: { click: copy } }, "Copy")),
    ].filter(Boolean);
  }

  const content = [
    element("p", {}, "Copy it now: it is not shown again."),
    ...copyable("", secret, "secret"),
    ...Object.entries(more).flatMap(([name, value]) => copyable(name, value, "copied")),
    copied,
  ];
  do await ask(title, content, { Done: true }); while (!isCopied && !(await closes()));
}

async function closes() {
  const question = [element("p", {}, "It is not shown again, and you have not copied it.")];
  return (await ask("Close without a copy?", question, { "Close without a copy": true, "Show it again": false })) === true;
}
