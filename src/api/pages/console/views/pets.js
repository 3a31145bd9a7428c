// The pets of the store: search, filters, the inventory, and a grid of all matches.

import { follow, hasDemoKeys, json, pages } from "../api.js";
import { element, field } from "../dom.js";
import { grid } from "../widgets/grid.js";
import { STATUSES, inventory } from "../widgets/inventory.js";
import { petCard } from "../widgets/pet_card.js";
import { problem } from "../widgets/problem.js";

const PAGE = 60;
/** Time without typing after which a search begins, in milliseconds. */
const PAUSE = 250;
/** Time over which changes are collected, and the pets that are read then: others are read when they are opened. */
const [COLLECT, MAX_READ] = [250, 20];

export async function pets({ signal, parameters, done }) {
  const chart = element("div", {});
  const found = element("div", { id: "pets" });
  let search = new AbortController();
  let shown;
  signal.addEventListener("abort", () => search.abort());

  /** Shows the pets that match the filters, which are in the URL. */
  function show(filters) {
    search.abort();
    search = new AbortController();
    const isFiltered = filters.size > 0;
    history.replaceState(null, "", isFiltered ? `#/pets?${filters}` : "#/pets");
    const empty = () => (isFiltered ? element("p", {}, "No pet matches.") : emptyStore(done));
    shown = grid({ next: matches(filters, search.signal), card: petCard, empty, signal: search.signal });
    found.replaceChildren(...shown.nodes);
  }

  // A caller may see pets without seeing the inventory.
  const showInventory = () =>
    json("GET", "store/inventory").then((counts) => chart.replaceChildren(inventory(counts)), () => {});

  /** Shows the new states of changed pets: of those that are shown, and of new ones that match. */
  async function refresh(changes) {
    const wanted = [...changes].filter(([id, { action }]) => shown.has(id) || action === "created");
    await Promise.all(wanted.slice(0, MAX_READ).map(async ([id, { action }]) => {
      if (action === "deleted") return shown.drop(id);
      const pet = await json("GET", `pet/${id}`).catch(() => null);
      if (pet) shown.put(pet, action === "created" && isMatch(pet, filtersOf(form)));
    }));
    await showInventory();
  }

  const form = filterForm(parameters, show);
  show(filtersOf(form));
  showInventory();
  follow(collected(refresh), signal);
  return [element("div", { className: "title" }, element("h1", {}, "Pets"), element("a", { className: "button", href: "#/pets/new" }, "New pet")), chart, form, found];
}

/** Returns the form of the filters, with the values of `parameters`; `changed` gets the filters. */
function filterForm(parameters, changed) {
  const statuses = parameters.getAll("status");
  const text = (name, properties) =>
    element("input", { id: name, name, type: "search", maxLength: 200, value: parameters.get(name) ?? "", ...properties });
  let timer;
  const form = element("form", { className: "filters", ariaLabel: "Filters", attributes: { role: "search" } },
    field("Name begins with", text("name", { autocomplete: "off" })),
    field("Tag", text("tag", { autocomplete: "off" })),
    element("fieldset", {},
      element("legend", {}, "Status"),
      ...STATUSES.map((status) => element("label", {},
        element("input", { type: "checkbox", name: "status", value: status, checked: statuses.includes(status) }),
        ` ${status}`))));
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => changed(filtersOf(form)), PAUSE);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}

function filtersOf(form) {
  const filled = [...new FormData(form)].filter(([, value]) => value.trim() !== "");
  return new URLSearchParams(filled);
}

/** Returns a function that returns the next matches. The service finds by tag, or by name and status: the rest is done here. */
function matches(filters, signal) {
  const tag = filters.get("tag");
  if (tag === null) {
    const query = new URLSearchParams(filters);
    query.set("limit", PAGE);
    return pages(`pet?${query}`, signal);
  }
  const next = pages(`pet/findByTags?${new URLSearchParams({ tags: tag, limit: PAGE })}`, signal);
  return async () => (await next())?.filter((pet) => isMatch(pet, filters)) ?? null;
}

function isMatch(pet, filters) {
  const [name, tag, statuses] = [filters.get("name") ?? "", filters.get("tag"), filters.getAll("status")];
  return pet.name.toLowerCase().startsWith(name.toLowerCase())
    && (tag === null || pet.tags.some((it) => it.name === tag))
    && (statuses.length === 0 || statuses.includes(pet.status));
}

/** Returns a listener for changes, which passes the last one of each pet to `refresh`, several at once. */
function collected(refresh) {
  const changes = new Map();
  return (change) => {
    if (change.kind !== "pet") return;
    if (changes.size === 0) {
      setTimeout(() => {
        const taken = new Map(changes);
        changes.clear();
        refresh(taken);
      }, COLLECT);
    }
    const id = Number(change.resource);
    // A pet that was created and then changed is new.
    const isNew = changes.get(id)?.action === "created" && change.action === "changed";
    changes.set(id, isNew ? changes.get(id) : change);
  };
}

/** Returns what stands for a store without pets: while this is a demo, an offer of sample pets. */
function emptyStore(done) {
  const content = element("section", { id: "empty", className: "card" }, element("p", {}, "The store is empty."));
  const add = async () => {
    try {
      await json("POST", "admin/sample-store");
      done();
    } catch (failure) {
      content.append(problem(failure, done));
    }
  };
  hasDemoKeys().then((isDemo) => {
    if (!isDemo) return;
    content.append(
      element("p", {}, "Look around with 30 sample pets: with pictures, tags and a few orders. ",
        element("code", {}, "pet-inventory seed --remove"), " deletes them again."),
      element("button", { id: "sample-store", on: { click: add } }, "Add the sample store"));
  }, () => {});
  return content;
}
