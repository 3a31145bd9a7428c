// A pet: its pictures, its fields, which can be changed, and its history; and a new pet.

import { changePages, json, newIdempotencyKey, scopes, send, versioned } from "../api.js";
import { element } from "../dom.js";
import { changeTable } from "../widgets/change_table.js";
import { announce } from "../widgets/announcement.js";
import { ask } from "../widgets/dialog.js";
import { leaveFor } from "../widgets/edits.js";
import { gallery } from "../widgets/gallery.js";
import { namesOf, petForm } from "../widgets/pet_form.js";
import { loadProblem } from "../widgets/problem.js";
import { uploads } from "../widgets/uploads.js";

const BACK = () => element("p", {}, element("a", { href: "#/pets" }, "← All pets"));

export async function pet({ id, signal, done, report }) {
  if (id === "new") return newPet(report);
  const granted = await scopes();
  const canWrite = granted.includes("write:pets");
  const path = `pet/${encodeURIComponent(id)}`;
  const load = () => Promise.all([versioned("GET", path), json("GET", `${path}/images`)]);
  let [stored, images] = await load();
  // The form changes the version that it shows, also after the pictures have changed.
  let version = stored;
  const pictures = element("div", {});

  /**
   * Makes a change to a version. After a 412, shows both versions, and makes it to the stored one if the person chooses that. Returns
   * true if it is made.
   */
  async function change(method, body, etag) {
    try {
      await send(method, path, { body, ifMatch: etag });
      return true;
    } catch (failure) {
      if (failure.status !== 412) throw failure;
      const theirs = await versioned("GET", path);
      return (await keepsMine(method, body, theirs.value)) === true && change(method, body, theirs.etag);
    }
  }

  /** Reads the pet again, and shows its pictures. */
  async function showPictures() {
    [stored, images] = await load();
    if (signal.aborted) return;
    if (hasSameFields(stored.value, version.value)) version = stored;
    fill();
  }

  function fill() {
    pictures.replaceChildren(...gallery(stored.value, images, canWrite ? { move, remove } : {}));
  }

  function move(one, other, index) {
    const urls = stored.value.photoUrls;
    const photoUrls = urls.with(one, urls[other]).with(other, urls[one]);
    const focus = () => pictures.querySelector(`li:nth-child(${index + 1}) button:enabled[title]`)?.focus();
    // If only the second fails, the first is not repeated.
    report(() => change("PATCH", { photoUrls }, stored.etag), () => report(showPictures, focus));
  }

  async function remove(image, name) {
    const question = [element("p", {}, `Remove ${name} of ${stored.value.name} for good?`)];
    if (!(await ask("Remove the picture?", question, { Remove: true, Keep: false }))) return;
    report(() => send("DELETE", `${path}/images/${image}`), () => report(showPictures, () => {}));
  }

  function save(mine, form) {
    if (Object.keys(mine).length === 0) return announce("Nothing has changed.");
    report(() => change("PATCH", mine, version.etag), done, form);
  }

  async function removePet() {
    const question = [element("p", {}, `${version.value.name} and its pictures are deleted for good.`)];
    if (!(await ask(`Delete ${version.value.name}?`, question, { Delete: true, Keep: false }))) return;
    report(() => change("DELETE", undefined, version.etag), (isDeleted) => (isDeleted ? leaveFor("#/pets") : done()));
  }

  fill();
  const { value } = version;
  return [
    BACK(),
    element("div", { className: "title" },
      element("h1", {}, value.name),
      granted.includes("read:orders") && element("a", { href: `#/orders?pet=${value.id}` }, "Orders"),
      element("span", { className: `state ${value.status}` }, value.status)),
    element("div", { className: "columns" },
      element("section", { className: "card", ariaLabel: "Pictures" }, pictures,
        canWrite && uploads(value.id, showPictures, signal)),
      canWrite
        ? petForm(value, save,
          element("button", { id: "delete", type: "button", className: "plain bad", on: { click: removePet } }, "Delete"))
        : facts(value)),
    granted.includes("read:changes") && history(value),
  ];
}

const hasSameFields = (one, other) =>
  JSON.stringify({ ...one, photoUrls: null }) === JSON.stringify({ ...other, photoUrls: null });

/** Asks whether a change is made although somebody else has changed the pet, and shows where the versions differ. */
function keepsMine(method, mine, theirs) {
  const rows = [
    ["Name", "name", (name) => name],
    ["Status", "status", (status) => status],
    ["Category", "category", (category) => category?.name ?? "–"],
    ["Tags", "tags", (tags) => namesOf(tags) || "–"],
    ["Pictures", "photoUrls", (urls) => `${urls.length} in another order`],
  ].filter(([, field]) => method === "DELETE" || field in mine);
  const table = element("table", {},
    element("thead", {}, element("tr", {}, element("td", {}), element("th", {}, "Yours"), element("th", {}, "Stored"))),
    element("tbody", {}, ...rows.map(([name, field, text]) => element("tr", {}, element("th", { scope: "row" }, name),
      element("td", {}, method === "DELETE" ? "deleted" : text(mine[field])), element("td", {}, text(theirs[field]))))));
  return ask("Somebody else has changed this pet", [table], { "Save mine": true, "Keep the stored version": false });
}

/** Returns the fields of a pet for callers that cannot change it. */
function facts({ category, tags }) {
  return element("section", { className: "card", ariaLabel: "Fields" },
    element("p", {}, `Category: ${category?.name ?? "–"}`), element("p", {}, `Tags: ${namesOf(tags) || "–"}`));
}

/** Returns the history of a pet, which comes when it is there. */
function history({ id }) {
  const content = element("section", { id: "history", className: "card", ariaLabel: "History" });
  const title = element("h2", {}, "History");
  const load = (pause) => changeTable(changePages({ kind: "pet", resource: id })).then(
    (table) => content.replaceChildren(title, table),
    (failure) => content.replaceChildren(title, loadProblem(failure, load, pause)));
  load();
  return content;
}

function newPet(report) {
  const add = (body, form) => {
    const idempotencyKey = newIdempotencyKey();
    report(() => json("POST", "pet", { body, idempotencyKey }), ({ id }) => leaveFor(`#/pets/${id}`), form);
  };
  return [BACK(), element("h1", {}, "New pet"), petForm({}, add)];
}
