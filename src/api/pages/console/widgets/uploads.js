// Uploads of pictures: chosen or dropped, one after the other, each with its progress and a way to cancel it.

import { upload } from "../api.js";
import { element } from "../dom.js";
import { watchEdits } from "./edits.js";

const TYPES = "image/png,image/jpeg,image/gif,image/webp";

/** Returns the place to drop pictures of a pet at; `done` is called after each uploaded one. */
export function uploads(id, done, signal) {
  const input = element("input", { id: "files", type: "file", multiple: true, accept: TYPES });
  const list = element("ul", { className: "uploads", attributes: { "aria-live": "polite" } });
  // The button of a running upload is an edit of this form: people are asked before they leave the page.
  const zone = watchEdits(element("form", { className: "drop" },
    element("label", { htmlFor: "files" }, "Add pictures"), input,
    element("p", { className: "quiet" }, "Choose PNG, JPEG, GIF or WebP files, or drop them here."), list));
  let queue = Promise.resolve();

  function add(files) {
    for (const file of files) {
      const { item, bar, cancel } = row(file.name);
      list.append(item);
      const cancelled = AbortSignal.any([cancel.signal, signal]);
      queue = queue.then(async () => {
        try {
          cancelled.throwIfAborted();
          await upload(`pet/${id}/uploadImage`, file, { progress: (part) => { bar.value = part; }, signal: cancelled });
          change(item, () => item.remove());
          await done();
        } catch (failure) {
          const text = cancelled.aborted ? "cancelled." : failure.message.replace(/^(The body|Everything together)/, "The file");
          change(item, () => item.replaceChildren(element("span", { className: "problem" }, `${file.name}: ${text}`)));
        }
      });
    }
  }

  /** Changes a row. If its button had the focus, the input gets it. */
  function change(item, make) {
    const hadFocus = item.contains(document.activeElement);
    make();
    if (hadFocus) input.focus({ preventScroll: true });
  }

  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
  for (const event of ["dragenter", "dragover", "dragleave", "drop"]) {
    zone.addEventListener(event, (dragged) => {
      dragged.preventDefault();
      zone.classList.toggle("over", event === "dragenter" || event === "dragover");
    });
  }
  zone.addEventListener("drop", ({ dataTransfer }) => add([...dataTransfer.files]));
  return zone;
}

function row(name) {
  const cancel = new AbortController();
  const bar = element("progress", { max: 1, value: 0, ariaLabel: `Upload of ${name}` });
  const button = element("button", { className: "plain", type: "button", on: { click: () => cancel.abort() } }, "Cancel");
  return { cancel, bar, item: element("li", {}, element("span", {}, name), bar, button) };
}
