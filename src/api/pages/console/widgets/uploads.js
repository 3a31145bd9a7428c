// Uploads of pictures: chosen or dropped, one after the other, each with its progress and a way to cancel it.

import { upload } from "../api.js";
import { element } from "../dom.js";

const TYPES = "image/png,image/jpeg,image/gif,image/webp";

/** Returns the place to drop pictures of a pet at. `done` is called after uploads, if one succeeded, with the failures of others. */
export function uploads(id, done, signal) {
  const input = element("input", { id: "files", type: "file", multiple: true, accept: TYPES });
  const list = element("ul", { className: "uploads", attributes: { "aria-live": "polite" } });
  const zone = element("div", { className: "drop" },
    element("label", { htmlFor: "files" }, "Add pictures"), input,
    element("p", { className: "quiet" }, "Choose PNG, JPEG, GIF or WebP files, or drop them here."), list);

  async function start(files) {
    const rows = [...files].map((file) => ({ file, ...row(file.name) }));
    list.append(...rows.map(({ item }) => item));
    const failures = [];
    for (const { file, item, bar, cancel } of rows) {
      const cancelled = AbortSignal.any([cancel.signal, signal]);
      try {
        cancelled.throwIfAborted();
        await upload(`pet/${id}/uploadImage`, file, { progress: (part) => { bar.value = part; }, signal: cancelled });
        item.remove();
      } catch (failure) {
        const text = `${file.name}: ${cancelled.aborted ? "cancelled." : failure.message}`;
        failures.push(text);
        item.replaceChildren(element("span", { className: "problem" }, text));
      }
    }
    if (failures.length < rows.length && !signal.aborted) done(failures.join(" "));
  }

  input.addEventListener("change", () => {
    start(input.files);
    input.value = "";
  });
  for (const event of ["dragenter", "dragover", "dragleave", "drop"]) {
    zone.addEventListener(event, (dragged) => {
      dragged.preventDefault();
      zone.classList.toggle("over", event === "dragenter" || event === "dragover");
    });
  }
  zone.addEventListener("drop", ({ dataTransfer }) => start(dataTransfer.files));
  return zone;
}

function row(name) {
  const cancel = new AbortController();
  const bar = element("progress", { max: 1, value: 0, ariaLabel: `Upload of ${name}` });
  const button = element("button", { className: "plain", type: "button", on: { click: () => cancel.abort() } }, "Cancel");
  return { cancel, bar, item: element("li", {}, element("span", {}, name), bar, button) };
}
