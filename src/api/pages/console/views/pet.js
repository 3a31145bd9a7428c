// A pet: its pictures and its fields, which can be changed, and a new pet.

import { changePages, json, scopes, send, versioned } from "../api.js";
import { element } from "../dom.js";
import { changeTable } from "../widgets/change_table.js";
import { ask } from "../widgets/dialog.js";
import { gallery } from "../widgets/gallery.js";
import { namesOf, petForm } from "../widgets/pet_form.js";
import { uploads } from "../widgets/uploads.js";

export async function pet({ id, signal, notice, done, again }) {
  if (id === "new") return newPet();
  const path = `pet/${encodeURIComponent(id)}`;
  const [{ value, etag }, images] = await Promise.all([versioned("GET", path), json("GET", `${path}/images`)]);
  const problem = element("p", { id: "problem", className: "problem", attributes: { role: "alert" } }, notice);

  /** Runs a change, and then shows the pet again, or why it failed. */
  async function change(work) {
    problem.textContent = "";
    try {
      await work();
    } catch (failure) {
      if (failure.status === 412) await resolve(path, failure.mine, done);
      else problem.textContent = failure.message;
      return;
    }
    done();
  }

  const save = (mine) => change(() => patch(path, mine, etag));
  const remove = async () => {
    const question = [element("p", {}, `${value.name} and its pictures are deleted for good.`)];
    if (!(await ask(`Delete ${value.name}?`, question, { Delete: true, Keep: false }))) return;
    try {
      await send("DELETE", path, { ifMatch: etag });
      location.hash = "#/pets";
    } catch (failure) {
      await change(() => Promise.reject(failure));
    }
  };
  const pictures = gallery(value, images, {
    move: (one, other) => change(() => {
      const photoUrls = value.photoUrls.with(one, value.photoUrls[other]).with(other, value.photoUrls[one]);
      return patch(path, { photoUrls }, etag);
    }),
    remove: async (image, name) => {
      const question = [element("p", {}, `Remove ${name} of ${value.name} for good?`)];
      if (await ask("Remove the picture?", question, { Remove: true, Keep: false })) {
        await change(() => send("DELETE", `${path}/images/${image}`));
      }
    },
  });
  const history = (await scopes()).includes("read:changes")
    && await changeTable(changePages({ kind: "pet", resource: value.id }));
  return [
    element("p", {}, element("a", { href: "#/pets" }, "← All pets")),
    element("div", { className: "title" },
      element("h1", {}, value.name),
      element("a", { href: `#/orders?pet=${value.id}` }, "Orders"),
      element("span", { className: `state ${value.status}` }, value.status)),
    problem,
    element("div", { className: "columns" },
      element("section", { className: "card", ariaLabel: "Pictures" }, ...pictures.filter(Boolean), uploads(value.id, again, signal)),
      petForm(value, save, element("button", { id: "delete", type: "button", className: "plain bad", on: { click: remove } }, "Delete"))),
    history && element("section", { id: "history", className: "card", ariaLabel: "History" }, element("h2", {}, "History"), history),
  ].filter(Boolean);
}

/** Changes the fields of a pet. A failure has what was to be changed. */
async function patch(path, mine, etag) {
  try {
    return await versioned("PATCH", path, { body: mine, ifMatch: etag });
  } catch (failure) {
    failure.mine = mine;
    throw failure;
  }
}

/** After somebody else has changed the pet: shows both versions, and stores the one that the person chooses. */
async function resolve(path, mine, done) {
  const { value: theirs, etag } = await versioned("GET", path);
  if (mine && !mine.photoUrls) {
    const row = (name, text) => [name, text(mine), text(theirs)];
    const rows = [
      row("Name", ({ name }) => name),
      row("Status", ({ status }) => status),
      row("Category", ({ category }) => category?.name ?? "–"),
      row("Tags", ({ tags }) => namesOf(tags) || "–"),
    ];
    const cells = ([name, ...texts]) => element("tr", {}, element("th", { scope: "row" }, name),
      ...texts.map((text) => element("td", { className: texts[0] === texts[1] ? "" : "notice" }, text)));
    const table = element("table", {},
      element("thead", {}, element("tr", {}, element("td", {}), element("th", {}, "Yours"), element("th", {}, "Stored"))),
      element("tbody", {}, ...rows.map(cells)));
    const keep = await ask("Somebody else has changed this pet", [table], { "Save mine": true, "Keep the stored version": false });
    if (keep) return patch(path, mine, etag).then(done, (failure) => resolve(path, failure.mine, done));
  }
  return done();
}

function newPet() {
  const problem = element("p", { id: "problem", className: "problem", attributes: { role: "alert" } });
  const add = async (entered) => {
    try {
      const { id } = await json("POST", "pet", { body: { ...entered, category: entered.category ?? undefined } });
      location.hash = `#/pets/${id}`;
    } catch (failure) {
      problem.textContent = failure.message;
    }
  };
  return [
    element("p", {}, element("a", { href: "#/pets" }, "← All pets")),
    element("h1", {}, "New pet"), problem, petForm({}, add),
  ];
}
