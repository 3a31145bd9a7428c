// The pets of the store: search, filters, the inventory, and a grid of all matches, which follows the record of changes.

import { follow, hasDemoKeys, json, newIdempotencyKey, pages, scopes } from "../api.js";
import { element, field } from "../dom.js";
import { grid } from "../widgets/grid.js";
import { STATUSES, inventory } from "../widgets/inventory.js";
import { petCard } from "../widgets/pet_card.js";

const PAGE = 60;
// In milliseconds.
/** Time without typing after which a search begins. */
const PAUSE = 250;
/**
 * Time over which changes are collected, and time until the next ones are shown: each request counts against the limits. After a
 * failure, time until they are read again, unless the service says another.
 */
const [COLLECT, REST, AGAIN] = [200, 600, 5_000];
/** Maximum number of pets that are read at once, and of changed ones that wait for that; beyond it, the grid begins anew. */
const [MAX_READ, MAX_WAITING] = [20, 500];

export async function pets({ signal, parameters, done, report }) {
  const granted = await scopes();
  const chart = element("div", {});
  const found = element("div", { id: "pets" });
  let search = new AbortController();
  let shown;
  signal.addEventListener("abort", () => search.abort());

  /** Shows the pets that match the filters, which are in the URL. */
  function show(filters) {
    if (signal.aborted) return;
    search.abort();
    search = new AbortController();
    const isFiltered = filters.size > 0;
    history.replaceState(history.state, "", isFiltered ? `#/pets?${filters}` : "#/pets");
    const empty = () => (isFiltered ? element("p", {}, "No pet matches.") : emptyStore(granted, done, report));
    shown = grid({ next: matches(filters, search.signal), card: petCard, empty, signal: search.signal });
    found.replaceChildren(...shown.nodes);
  }

  const form = filterForm(parameters, show);
  const isShown = ({ resource, action }) => action === "created" || shown.has(Number(resource));

  async function showInventory() {
    if (granted.includes("read:orders")) chart.replaceChildren(inventory(await json("GET", "store/inventory")));
  }

  /** Shows the new states of changed pets. */
  async function refresh(changes) {
    await Promise.all(changes.map(async ([id, { isNew, isGone }]) => {
      if (isGone) return shown.drop(id);
      // It may be gone again.
      const pet = await json("GET", `pet/${id}`).catch((failure) => {
        if (failure.status !== 404) throw failure;
      });
      if (pet === undefined) return shown.drop(id);
      shown.put(pet, isNew && isMatch(pet, filtersOf(form)));
    }));
    if (changes.some(([, { hasStatus }]) => hasStatus)) await showInventory();
  }

  const missed = () => show(filtersOf(form));
  if (granted.includes("read:changes")) follow({ changed: collected(isShown, refresh, missed, signal), missed, signal });
  show(filtersOf(form));
  // The grid tells failures.
  showInventory().catch(() => {});
  return [
    element("div", { className: "title" }, element("h1", {}, "Pets"),
      granted.includes("write:pets") && element("a", { className: "button", href: "#/pets/new" }, "New pet")),
    chart, form, found,
  ];
}

/** Returns the form of the filters, with the values of `parameters`; `changed` gets the filters. */
function filterForm(parameters, changed) {
  const statuses = parameters.getAll("status");
  const text = (name) => element("input", {
    id: name, name, type: "search", maxLength: 200, value: parameters.get(name) ?? "", autocomplete: "off",
  });
  let timer;
  const form = element("form", { className: "filters", ariaLabel: "Filters", attributes: { role: "search" } },
    field("Name begins with", text("name")),
    field("Tag", text("tag")),
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

/**
 * Returns a listener for changes, which passes those of each pet to `refresh` as one: of those that `isWanted`, several pets at once,
 * one call at a time. Calls `overflow` in place of it after too many changes.
 */
function collected(isWanted, refresh, overflow, signal) {
  const changes = new Map();
  let isWaiting = false;
  const wait = (time) => new Promise((resolve) => { setTimeout(resolve, time); });

  async function run() {
    isWaiting = true;
    await wait(COLLECT);
    while (changes.size > 0 && !signal.aborted) {
      const taken = [...changes].slice(0, MAX_READ);
      for (const [id] of taken) changes.delete(id);
      const failure = await refresh(taken).then(() => null, (it) => it);
      if (failure !== null) {
        for (const [id, change] of taken) if (!changes.has(id)) changes.set(id, change);
      }
      await wait(failure === null ? REST : failure.retryAfter * 1_000 || AGAIN);
    }
    isWaiting = false;
  }

  return (change) => {
    if (change.kind !== "pet" || !isWanted(change)) return;
    const id = Number(change.resource);
    const before = changes.get(id);
    const isGone = change.action === "deleted";
    changes.set(id, {
      isNew: !isGone && (before?.isNew || change.action === "created"),
      isGone,
      hasStatus: before?.hasStatus || isGone || change.data?.status !== undefined,
    });
    if (changes.size > MAX_WAITING) {
      changes.clear();
      overflow();
    }
    if (!isWaiting) run();
  };
}

/** Returns the content of an empty store: while this is a demo, an offer of sample pets. */
function emptyStore(granted, done, report) {
  const content = element("section", { id: "empty", className: "card" }, element("p", {}, "The store is empty."));
  const add = () => {
    const idempotencyKey = newIdempotencyKey();
    report(() => json("POST", "admin/sample-store", { idempotencyKey }), done);
  };
  hasDemoKeys().then((isDemo) => {
    if (!isDemo || !granted.includes("admin")) return;
    content.append(
      element("p", {}, "Look around with 30 sample pets: with pictures, tags and a few orders. ",
        element("code", {}, "pet-inventory seed --remove"), " deletes them again."),
      element("button", { id: "sample-store", on: { click: add } }, "Add the sample store"));
  }, () => {});
  return content;
}
