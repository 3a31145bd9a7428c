// A pet: its pictures, its fields, which can be changed, and its history; and a new pet.

import { json, newIdempotencyKey, scopes, send, versioned } from "../api.js";
import { element, isolated, keepFocus, nameOf, nameTab } from "../dom.js";
import { changeTable } from "../widgets/change_table.js";
import { pictureText } from "../widgets/change_text.js";
import { announce } from "../widgets/announcement.js";
import { ask } from "../widgets/dialog.js";
import { hasEdits, leaveFor, mayLoseEdits, watchEdits } from "../widgets/edits.js";
import { gallery } from "../widgets/gallery.js";
import { petForm } from "../widgets/pet_form.js";
import { soon } from "../widgets/patience.js";
import { loadProblem } from "../widgets/problem.js";
import { tagLinks } from "../widgets/pet_card.js";
import { restoreButton, undoButton } from "../widgets/undo.js";
import { picturesOfNewPet, uploads } from "../widgets/uploads.js";
import { listPlace } from "./pets.js";

/** Returns the link to the list, as it was shown last. */
const BACK = () => element("p", {}, element("a", { className: "back", href: listPlace() }, "← Pets"));

export async function pet({ id, signal, done, report }) {
  const granted = await scopes();
  const canWrite = granted.includes("write:pets");
  if (id === "new") return newPet(canWrite, report, signal);
  const path = `pet/${encodeURIComponent(id)}`;
  const load = () => Promise.all([versioned("GET", path), json("GET", `${path}/images`)]);
  let [stored, images] = await load();
  // The form changes the version that it shows, also after the pictures have changed.
  let version = stored;
  let isDeleted = false;
  const [title, pictures, fields] = [element("div", { className: "title" }), element("div", { tabIndex: -1 }), element("div", {})];
  const notice = element("p", { id: "elsewhere", className: "notice", attributes: { role: "status" } });

  /**
   * Makes a change to a version. After a 412, shows both versions, and makes it to the stored one if the person chooses that. Returns
   * true if it is made, false if the person keeps the stored version, and null if the person chooses neither.
   */
  async function change(method, body, base) {
    try {
      await send(method, path, { body, ifMatch: base.etag });
      return true;
    } catch (failure) {
      if (failure.status === 404) showDeleted();
      if (failure.status !== 412) throw failure;
      const theirs = await versioned("GET", path);
      const isMine = await keepsMine(method, body, base.value, theirs.value);
      return isMine === true ? change(method, body, theirs) : isMine ?? null;
    }
  }

  /** Reads the pet again, and shows its pictures. */
  async function showPictures() {
    [stored, images] = await load();
    if (signal.aborted || isDeleted) return;
    if (hasSameFields(stored.value, version.value)) version = stored;
    fill();
  }

  function fill() {
    const focused = [...pictures.querySelectorAll("button")].indexOf(document.activeElement);
    pictures.replaceChildren(...gallery(stored.value, images, canWrite && !isDeleted ? { move, remove } : {}));
    if (focused < 0) return;
    pictures.querySelectorAll("button")[focused]?.focus({ preventScroll: true });
    // The button may be gone or disabled.
    if (!pictures.contains(document.activeElement)) pictures.focus({ preventScroll: true });
  }

  /** Shows the fields that are stored. */
  function showFields() {
    version = stored;
    const { value } = version;
    const focused = fields.contains(document.activeElement) && document.activeElement.id;
    const link = title.contains(document.activeElement) && document.activeElement.hash;
    title.replaceChildren(
      element("div", { className: "named" },
        element("h1", { title: value.name }, value.name), element("span", { className: `state ${value.status}` }, value.status)),
      element("div", { className: "actions" }, ...[
        value.status === "available" && granted.includes("write:orders")
          && element("a", { className: "button", href: `#/orders?pet=${value.id}&new` }, "Order"),
        granted.includes("read:orders") && element("a", { href: `#/orders?pet=${value.id}` }, "Orders"),
      ].filter(Boolean)));
    fields.replaceChildren(canWrite
      ? petForm(value, save,
        element("button", { id: "delete", type: "button", className: "plain bad", on: { click: () => report(openOrders, deletePet) } }, "Delete"))
      : facts(value));
    if (link) [...title.querySelectorAll("a")].find(({ hash }) => hash === link)?.focus({ preventScroll: true });
    if (focused !== false) document.getElementById(focused || "name")?.focus({ preventScroll: true });
    if (!title.isConnected) return;
    nameTab(value.name);
    keepFocus(pictures);
  }

  /** Shows what others have changed, or says so if that would take edits away. */
  async function refresh() {
    const theirs = await versioned("GET", path).catch((failure) => {
      if (failure.status !== 404) throw failure;
    });
    if (signal.aborted) return;
    if (theirs === undefined) return showDeleted();
    if (theirs.etag === stored.etag) return;
    await showPictures();
    if (signal.aborted || version === stored) return;
    // Uploads go on.
    if (hasEdits(drop)) return notice.replaceChildren("Somebody else has changed this pet. Your changes are still in the form. ", takeTheirs);
    notice.replaceChildren();
    showFields();
  }

  /** Takes away what changes the pet. What was typed can still be copied. */
  function showDeleted() {
    notice.replaceChildren("This pet has been deleted.");
    if (isDeleted) return;
    isDeleted = true;
    fill();
    if (drop) drop.remove();
    title.replaceChildren(title.querySelector("h1"));
    const form = fields.querySelector("form");
    if (form) {
      const edited = hasEdits();
      for (const control of [...form.elements]) {
        if (control.matches("button")) control.remove();
        else if (control.matches("select")) control.disabled = true;
        else control.readOnly = true;
      }
      if (!edited) watchEdits(form);
    }
    keepFocus(pictures);
  }

  const takeTheirs = element("button", { className: "plain", type: "button", on: { click: async () => {
    if (await mayLoseEdits()) done();
  } } }, "Show the stored version");

  function move(one, other, index) {
    const urls = stored.value.photoUrls;
    const photoUrls = urls.with(one, urls[other]).with(other, urls[one]);
    const focus = () => pictures.querySelector(`li:nth-child(${index + 1}) button:enabled[title]`)?.focus();
    // If only the second fails, the first is not repeated.
    report(() => change("PATCH", { photoUrls }, stored), () => report(showPictures, focus));
  }

  async function remove(image, name, index) {
    const question = [element("p", {}, `Remove ${name} of ${isolated(stored.value.name)} for good?`)];
    // The next picture, or the last one.
    const focus = () => {
      const left = pictures.querySelectorAll("[title=Remove]");
      (left[Math.min(index, left.length - 1)] ?? pictures).focus({ preventScroll: true });
    };
    if (!(await ask("Remove the picture?", question, { Remove: true, Keep: false }))) return;
    report(() => send("DELETE", `${path}/images/${image}`), () => report(showPictures, focus));
  }

  function save(mine, form) {
    if (Object.keys(mine).length === 0) return announce("Nothing has changed.");
    report(() => change("PATCH", mine, version), done, form);
  }

  const openOrders = async () => {
    if (!granted.includes("read:orders")) return [];
    const orders = await json("GET", `store/orders?petId=${stored.value.id}&status=placed,approved`);
    return orders.filter(({ complete }) => !complete);
  };

  /** Deletes the pet, unless the person keeps it. */
  async function deletePet(orders) {
    const name = isolated(version.value.name);
    const question = [element("p", {}, `${name} and its pictures are deleted for good.`),
      ...orders.map((order) => element("p", { className: "problem" }, `Order ${order.id} is open. It stays, and can no longer be delivered.`))];
    if (!(await ask(`Delete ${name}?`, question, { Delete: true, Keep: false }))) return;
    report(() => change("DELETE", undefined, version), (isDeleted) => {
      if (!isDeleted) return refresh();
      leaveFor(listPlace());
      announce("The pet is deleted.", true);
    });
  }

  fill();
  showFields();
  const changed = soon(refresh, signal);
  const drop = canWrite && uploads(stored.value.id, showPictures, signal);
  return [
    BACK(), notice, title,
    element("div", { className: "columns" },
      fields,
      element("section", { className: "card", ariaLabel: "Pictures" }, pictures, drop)),
    granted.includes("read:changes") && history(stored.value, {
      signal,
      changed,
      missed: changed,
      act: (change) => canWrite && (undoButton(change, report, done) ?? restoreButton(change, report, done)),
    }),
  ];
}

const hasSameFields = (one, other) =>
  JSON.stringify({ ...one, photoUrls: null }) === JSON.stringify({ ...other, photoUrls: null });

/**
 * Asks whether a change of `before` is made although somebody else has changed the pet, and shows what either has changed. Fields that
 * are not in `mine` stay as they are stored.
 */
function keepsMine(method, mine, before, theirs) {
  const isSame = (field) => JSON.stringify(before[field]) === JSON.stringify(theirs[field]);
  const rows = [
    ["Name", "name", (name) => name],
    ["Status", "status", (status) => status],
    ["Category", "category", (category) => category?.name ?? "–"],
    ["Tags", "tags", (tags) => tags.map(({ name }) => `“${name ?? ""}”`).join(", ") || "–"],
    ["Pictures", "photoUrls", (urls) => pictureText(before.photoUrls, urls)],
  ].filter(([, field]) => method === "DELETE" || field in mine || !isSame(field));
  const own = (field, text) => {
    if (method === "DELETE") return "deleted";
    return field in mine ? text(mine[field]) : "not changed";
  };
  const table = element("table", {},
    element("thead", {}, element("tr", {}, element("td", {}), element("th", {}, "Yours"), element("th", {}, "Stored"))),
    element("tbody", {}, ...rows.map(([name, field, text]) => element("tr", {}, element("th", { scope: "row" }, name),
      element("td", {}, own(field, text)), element("td", {}, isSame(field) ? "not changed" : text(theirs[field]))))));
  const choices = method === "DELETE" ? { Delete: true, Keep: false } : { "Save mine": true, "Keep the stored version": false };
  return ask("Somebody else has changed this pet", [table], choices);
}

/** Returns the fields of a pet for callers that cannot change it. */
function facts({ category, tags }) {
  return element("section", { className: "card", ariaLabel: "Fields" },
    element("p", {}, `Category: ${category?.name ?? "–"}`), element("p", {}, "Tags: ", ...tagLinks(tags, ", ")));
}

/** Returns the history of a pet, which comes when it is there. */
function history({ id }, following) {
  const content = element("section", { id: "history", className: "card", ariaLabel: "History" });
  const title = element("h2", {}, "History");
  const load = (pause) => changeTable(new URLSearchParams({ kind: "pet", resource: id }), following).then(
    (table) => content.replaceChildren(title, table),
    (failure) => content.replaceChildren(title, loadProblem(failure, load, pause)));
  load();
  return content;
}

function newPet(canWrite, report, signal) {
  const title = element("h1", {}, "New pet");
  if (!canWrite) return [BACK(), title, element("p", { className: "problem" }, "The scope write:pets is required.")];
  const added = element("p", { id: "added", className: "notice", attributes: { role: "status" } });
  const pictures = picturesOfNewPet(signal);
  const another = element("button", { id: "add-another", className: "plain" }, "Save and add another");
  /** True if the person adds one pet after the other. */
  let isSeries = false;
  /** Body and idempotency key of a request without a known outcome. */
  let attempt = {};

  function save(body, form, button) {
    // Without a button, it is the repetition of a failed attempt.
    if (button) isSeries = button === another;
    const text = JSON.stringify(body);
    if (attempt.text !== text) attempt = { text, idempotencyKey: newIdempotencyKey() };
    const { idempotencyKey } = attempt;
    // Leaving would end the uploads of the pets before.
    const stays = isSeries || pictures.isBusy();
    let stored;
    report(async () => {
      stored = await json("POST", "pet", { body, idempotencyKey });
      attempt = {};
      // The message of `stay` says more than "Saved.".
      return !stays;
    }, () => (stays ? stay(stored, form) : leave(stored)), form);
  }

  function leave({ id }) {
    pictures.handOver(id);
    leaveFor(`#/pets/${id}`);
  }

  /** Keeps what pets of a series have in common. */
  function stay(pet, form) {
    added.replaceChildren(element("a", { href: `#/pets/${pet.id}` }, nameOf(pet.name)), ` is added (pet ${pet.id}).`);
    pictures.upload(pet);
    form.elements.name.value = "";
    watchEdits(form);
    form.elements.name.focus();
  }

  const form = petForm({}, save, another);
  form.append(element("p", { className: "quiet keys" }, "Ctrl+Enter saves and adds another. After the first, Enter does, too."));
  const content = element("div", { className: "columns" }, form,
    element("section", { className: "card", ariaLabel: "Pictures" }, pictures.form));
  content.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    const repeats = isSeries && !event.defaultPrevented && form.contains(event.target) && event.target.matches("input");
    if (!event.ctrlKey && !event.metaKey && !repeats) return;
    event.preventDefault();
    form.requestSubmit(another);
  });
  return [BACK(), title, added, content];
}
