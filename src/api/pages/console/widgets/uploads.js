// Uploads of pictures: chosen, pasted, or dropped anywhere on the page, one after the other, each with its progress and a way to cancel it.

import { newIdempotencyKey, upload } from "../api.js";
import { element, keepFocus, nameOf } from "../dom.js";
import { watchEdits } from "./edits.js";
import { patiently } from "./patience.js";
import { isTemporary } from "./problem.js";
import { canDecode, smallerPicture } from "./smaller_picture.js";

/** Statuses of a picture that the service does not take as it is: too large, or of another type. */
const REFUSED = [400, 413, 415, 422];
/** Divisors of the sides of an uploaded picture, 0 for the file itself. The next one is tried while the picture is too large. */
const [AS_IT_IS, SMALLER] = [[0], [1, 2, 4]];

/** Pictures that were chosen for a new pet, by its number. The page of the pet uploads them. */
const handedOver = new Map();

/** Returns the form to add pictures of a pet with; `done` is called after each uploaded one. */
export function uploads(id, done, signal) {
  const { rows, add } = uploadList(signal);
  const addAll = (files) => files.forEach((file) => add(file, { id, done }));
  const form = pictureForm(addAll, signal, rows);
  addAll(handedOver.get(id) ?? []);
  handedOver.delete(id);
  return form;
}

/**
 * Returns the form to choose pictures of a new pet with, which shows them until the pet is stored. Then they are handed over to the
 * page of the pet, or uploaded here. `isBusy` returns true while some are uploaded here, or wait for the person.
 */
export function picturesOfNewPet(signal) {
  let chosen = [];
  const { rows, add } = uploadList(signal);
  const list = element("ul", { className: "gallery chosen" });
  const form = pictureForm((files) => list.append(...files.map(thumbnail)), signal, list, rows);

  function thumbnail(file) {
    const source = URL.createObjectURL(file);
    const release = () => URL.revokeObjectURL(source);
    const item = element("li", {},
      element("div", { className: "picture" }, element("img", { src: source, alt: file.name, on: { load: release, error: release } })),
      element("button", { type: "button", className: "plain bad", title: "Remove", ariaLabel: `Remove: ${file.name}`, on: { click: remove } }, "✕"));
    chosen.push(file);
    function remove() {
      const next = item.nextSibling ?? item.previousSibling;
      chosen = chosen.filter((it) => it !== file);
      item.remove();
      keepFocus(next?.querySelector("button") ?? form.querySelector("input"));
    }
    return item;
  }

  function take() {
    list.replaceChildren();
    return chosen.splice(0);
  }

  return {
    form,
    handOver: (id) => handedOver.set(id, take()),
    upload: ({ id, name }) => take().forEach((file) => add(file, { id, link: element("a", { href: `#/pets/${id}` }, nameOf(name)) })),
    isBusy: () => rows.querySelector("button") !== null,
  };
}

/** Returns a form that passes pictures to `add`: chosen, pasted, or dropped anywhere on the page. */
function pictureForm(add, signal, ...content) {
  const input = element("input", { id: "files", type: "file", multiple: true, accept: "image/*" });
  // The button of a running upload is an edit of this form: people are asked before they leave the page.
  const form = watchEdits(element("form", { className: "drop" },
    element("label", { htmlFor: "files" }, "Add pictures"), input,
    element("p", { className: "quiet" }, "Choose PNG, JPEG, GIF or WebP files, paste them, or drop them anywhere on this page."), ...content));
  const takes = () => form.isConnected && !document.querySelector("dialog, main[inert]");
  const hasFiles = ({ types }) => types.includes("Files");
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
  const listen = (event, listener) => addEventListener(event, listener, { signal });
  listen("dragover", ({ dataTransfer }) => {
    if (!takes() || !hasFiles(dataTransfer)) return;
    dataTransfer.dropEffect = "copy";
    form.classList.add("over");
  });
  listen("dragleave", ({ relatedTarget }) => {
    if (relatedTarget === null) form.classList.remove("over");
  });
  listen("drop", ({ dataTransfer }) => {
    form.classList.remove("over");
    if (takes()) add([...dataTransfer.files]);
  });
  listen("paste", (event) => {
    const { files, types } = event.clipboardData;
    // Programs for texts and tables copy a picture of the text, too.
    const isText = types.includes("text/plain") && event.target.matches("input");
    if (files.length === 0 || isText || !takes()) return;
    event.preventDefault();
    add([...files]);
  });
  return form;
}

/** Returns the list of uploads, and a function that adds one to a pet. The item begins with `link`, if there is one. */
function uploadList(signal) {
  const rows = element("ul", { className: "uploads", attributes: { "aria-live": "polite" } });
  let queue = Promise.resolve();
  let isAgreed = false;
  /** Functions that upload the pictures which the person may want smaller. */
  const offers = [];

  function add(file, { id, link, done }) {
    const item = element("li", {});
    const idempotencyKey = newIdempotencyKey();
    const button = (text, click) => element("button", { className: "plain", type: "button", on: { click } }, text);
    rows.append(item);

    /** Changes the item. If its button had the focus, the input gets it. */
    function change(make) {
      const hadFocus = item.contains(document.activeElement);
      make();
      if (hadFocus) document.getElementById("files")?.focus({ preventScroll: true });
    }

    const show = (...content) => change(() => item.replaceChildren(...[link, ...content].filter(Boolean)));

    async function send(divisors, bar, note, over) {
      for (const divisor of divisors) {
        const picture = divisor === 0 ? file : await smallerPicture(file, divisor);
        const options = { progress: (part) => { bar.value = part; }, signal: over, idempotencyKey: `${idempotencyKey}-${divisor}` };
        const request = () => {
          over.throwIfAborted();
          bar.value = 0;
          return upload(`pet/${id}/uploadImage`, picture, options);
        };
        try {
          return await patiently(request, note, () => over.aborted);
        } catch (failure) {
          if (failure.status !== 413 || divisor === divisors.at(-1)) throw failure;
        }
      }
    }

    /** Shows why a picture is not uploaded, and what can be done. */
    async function tell(failure, divisors) {
      const mayBeSmaller = divisors === AS_IT_IS && REFUSED.includes(failure.status) && await canDecode(file);
      const smaller = () => start(SMALLER);
      if (mayBeSmaller && isAgreed) return smaller();
      if (mayBeSmaller) offers.push(smaller);
      const reason = failure.message.replace(/^(The body|Everything together)/, "The file");
      const advice = !mayBeSmaller && /\.hei[cf]$/i.test(file.name) ? " Save it as JPEG first." : "";
      show(element("span", { className: "problem" }, `${file.name}: ${reason}${advice}`),
        mayBeSmaller && button("Make such pictures smaller", agree),
        isTemporary(failure) && button("Try again", () => start(divisors)));
    }

    function start(divisors) {
      const cancel = new AbortController();
      const over = AbortSignal.any([cancel.signal, signal]);
      const bar = element("progress", { max: 1, value: 0, ariaLabel: `Upload of ${file.name}` });
      const note = element("span", { className: "quiet" });
      show(element("span", {}, file.name), bar, note, button("Cancel", () => cancel.abort()));
      queue = queue.then(async () => {
        try {
          await send(divisors, bar, note, over);
        } catch (failure) {
          if (!over.aborted) return tell(failure, divisors);
          return show(element("span", { className: "problem" }, `${file.name}: cancelled.`));
        }
        change(() => item.remove());
        // After a failure, the next change shows it.
        await done?.().catch(() => {});
      });
    }

    start(AS_IT_IS);
  }

  function agree() {
    isAgreed = true;
    for (const smaller of offers.splice(0)) smaller();
  }

  return { rows, add };
}
