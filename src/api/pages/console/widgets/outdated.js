// A note that what is shown is no longer what is stored. The person chooses when to lose the place.

import { element } from "../dom.js";

/** Returns the place of the note, and a function that shows it. Its button calls `show`. */
export function outdatedNote(show) {
  const note = element("p", { className: "notice outdated", attributes: { role: "status" } });
  const act = () => {
    note.replaceChildren();
    show();
  };
  const button = element("button", { className: "plain", type: "button", on: { click: act } }, "Show");
  return [note, () => note.firstChild ?? note.append("The list has changed. ", button)];
}
