// The pets of the store: search, filters, the inventory, and a grid of all matches, which follows the record of changes.

import { follow, hasDemoKeys, json, newIdempotencyKey, pages, scopes } from "../api.js";
import { element, field, nameOf, wait } from "../dom.js";
import { foldButton } from "../widgets/fold.js";
import { grid } from "../widgets/grid.js";
import { STATUSES, inventory } from "../widgets/inventory.js";
import { manyPets } from "../widgets/many.js";
import { outdatedNote } from "../widgets/outdated.js";
import { petCard } from "../widgets/pet_card.js";
import { isTemporary } from "../widgets/problem.js";
import { MAX_SUGGESTED, tagSuggestions, tagsThatBegin } from "../widgets/tag_suggestions.js";

const PAGE = 60;
/** Maximum number of characters that the service accepts. */
const MAX_LENGTH = 255;
/** Search that is the number of a pet, too. */
const NUMBER = /^[1-9]\d{0,14}$/;
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

/** Fragment of the list with the filters that were shown last. */
let shownPlace = "#/pets";
export const listPlace = () => shownPlace;

export async function pets({ signal, parameters, done, report }) {
  const granted = await scopes();
  const chart = element("div", {});
  const found = element("div", { id: "pets" });
  let search = new AbortController();
  let shown;
  let counts;
  signal.addEventListener("abort", () => search.abort());
  const many = granted.includes("write:pets") && manyPets({
    list: () => shown.all(),
    query: (limit) => queryOf(filtersOf(form), limit),
    changed: (pet) => shown.put(pet),
    gone: (id) => shown.drop(id),
    signal,
  });

  /** Shows the pets that match the filters, which are in the URL. */
  function show(filters) {
    if (signal.aborted) return;
    search.abort();
    search = new AbortController();
    shownPlace = filters.size > 0 ? `#/pets?${filters}` : "#/pets";
    history.replaceState(history.state, "", shownPlace);
    const empty = () => (isFiltered(filters) ? noMatch(filters, search.signal) : emptyStore(granted, done, report));
    shown = grid({ next: matches(filters, search.signal), card: many ? many.card : petCard, empty, signal: search.signal });
    found.replaceChildren(...shown.nodes);
    showCounts();
  }

  function showCounts() {
    if (counts) chart.replaceChildren(inventory(counts, isFiltered(filtersOf(form))));
  }

  const form = filterForm(parameters, (filters) => {
    if (many) many.clear();
    show(filters);
  });
  const isShown = ({ resource, action }) => action === "created" || shown.get(Number(resource)) !== undefined;

  async function readCounts() {
    if (!granted.includes("read:orders")) return;
    counts = await json("GET", "store/inventory");
    showCounts();
  }

  /** Shows the inventory, also after failures. The grid tells them. */
  async function showInventory() {
    const failure = await readCounts().then(() => null, (it) => it);
    if (failure === null || !isTemporary(failure) || signal.aborted) return;
    await wait(failure.retryAfter * 1_000 || AGAIN);
    if (!signal.aborted) showInventory();
  }

  /** Shows the new states of changed pets. */
  async function refresh(changes) {
    const ids = changes.filter(([, { isGone }]) => !isGone).map(([id]) => id);
    const stored = ids.length > 0 ? await json("GET", `pet?id=${ids}`) : [];
    // It may be gone again.
    const read = changes.map(([id, { isNew }]) => ({ id, isNew, pet: stored.find((pet) => pet.id === id) }));
    const filters = filtersOf(form);
    const hasOtherStatus = ({ id, pet }) => pet && (shown.get(id)?.status ?? pet.status) !== pet.status;
    // A status may have changed before the record was followed.
    const isOutdated = read.some(hasOtherStatus) || changes.some(([, { hasStatus }]) => hasStatus);
    for (const { id, isNew, pet } of read) {
      if (pet === undefined) shown.drop(id);
      else shown.put(pet, isNew && isMatch(pet, filters) && (isNewestFirst(filters) || shown.isEmpty()));
    }
    if (isOutdated) await readCounts();
  }

  const [note, showNote] = outdatedNote(() => begin());
  const begin = () => {
    show(filtersOf(form));
    showInventory();
  };
  if (granted.includes("read:changes")) follow({ changed: collected(isShown, refresh, showNote, signal), missed: showNote, signal });
  begin();
  return [
    element("div", { className: "title" }, element("h1", {}, "Pets"),
      granted.includes("write:pets") && element("a", { className: "button", href: "#/pets/new" }, "New pet")),
    chart, form, note, many && many.bar, found,
  ];
}

/** Returns the form of the filters, with the values of `parameters`; `changed` gets the filters. */
function filterForm(parameters, changed) {
  const statuses = parameters.getAll("status");
  const text = (name) => element("input", {
    id: name, name, type: "search", maxLength: MAX_LENGTH, value: parameters.get(name) ?? "", autocomplete: "off",
  });
  const [name, tag] = [text("name"), text("tag")];
  const order = element("select", { id: "sort", name: "sort" },
    element("option", { value: "" }, "Newest first"),
    element("option", { value: "id" }, "By number"),
    element("option", { value: "name", hidden: true, disabled: true }, "By name"));
  let sort = parameters.get("sort") === "id" ? "id" : "";
  let timer;

  /** Pets that are searched by name come in the order of the names. */
  function showOrder() {
    const isByName = name.value.trim() !== "";
    if (!order.disabled) sort = order.value;
    order.disabled = isByName;
    order.value = isByName ? "name" : sort;
  }

  const form = element("form", { className: "filters", ariaLabel: "Filters", attributes: { role: "search" } },
    field("Name or number", name), foldButton(parameters.size > 0),
    field("Tag", tag),
    tagSuggestions(tag),
    field("Sort", order),
    element("fieldset", {},
      element("legend", {}, "Status"),
      ...STATUSES.map((status) => element("label", {},
        element("input", { type: "checkbox", name: "status", value: status, checked: statuses.includes(status) }),
        ` ${status}`))));
  order.value = sort;
  showOrder();
  form.addEventListener("input", () => {
    showOrder();
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

const isFiltered = (filters) => ["name", "tag", "status"].some((name) => filters.has(name));

const isNewestFirst = (filters) => !filters.has("name") && !filters.has("sort");

/** Returns the parameters of the list with these filters. */
function queryOf(filters, limit) {
  const query = new URLSearchParams(filters);
  query.set("limit", limit);
  if (isNewestFirst(filters)) query.set("sort", "-created");
  return query;
}

/** Returns a function like that of `pages`. A search for a number also finds the pet that has it, which comes first. */
function matches(filters, signal) {
  const next = pages(`pet?${queryOf(filters, PAGE)}`, signal);
  let number = NUMBER.exec(filters.get("name")?.trim())?.[0];
  return async () => {
    if (!number) return next();
    const query = new URLSearchParams(filters);
    for (const name of ["name", "sort"]) query.delete(name);
    query.set("id", number);
    const numbered = await json("GET", `pet?${query}`, { signal });
    const others = await next() ?? [];
    const id = Number(number);
    number = undefined;
    return [...numbered, ...others.filter((pet) => pet.id !== id)];
  };
}

/** Returns what is shown without a match: for a tag that is not in use, links to others. */
function noMatch(filters, signal) {
  const tag = filters.get("tag");
  if (tag === null) return element("p", {}, "No pet matches.");
  const isOnlyTag = !filters.has("name") && !filters.has("status");
  const content = element("div", {}, element("p", { className: "long" }, isOnlyTag ? `No pet has the tag “${tag}”.` : "No pet matches."));
  const prefix = [...tag.trim()].slice(0, 2).join("");
  otherTags(tag, prefix, signal).then((names) => {
    if (names.length === 0) return;
    content.append(element("p", { id: "other-tags" }, `Tags that begin with “${prefix}”: `, ...names.flatMap((name) => {
      const query = new URLSearchParams(filters);
      query.set("tag", name);
      return [element("a", { href: `#/pets?${query}` }, nameOf(name)), " "];
    })));
  }, () => {});
  return content;
}

/** Returns names of tags that begin with `prefix`, among them `tag` without the blanks around it, or none if `tag` is in use. */
async function otherTags(tag, prefix, signal) {
  const names = await tagsThatBegin(prefix, signal);
  const isInUse = async (name) =>
    names.includes(name) || (names.length === MAX_SUGGESTED && (await tagsThatBegin(name, signal)).includes(name));
  if (await isInUse(tag)) return [];
  const trimmed = tag.trim();
  if (trimmed !== tag && !names.includes(trimmed) && await isInUse(trimmed)) names.unshift(trimmed);
  return names;
}

function isMatch(pet, filters) {
  const [name, tag, statuses] = [filters.get("name") ?? "", filters.get("tag"), filters.getAll("status")];
  return (pet.name.toLowerCase().startsWith(name.toLowerCase()) || String(pet.id) === name.trim())
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
    // Its pets have no changes of their own.
    if (["import", "restore"].includes(change.kind)) return overflow();
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
      element("p", {}, "Look around with 30 sample pets: with pictures, tags and a few orders."),
      element("button", { id: "sample-store", on: { click: add } }, "Add the sample store"));
  }, () => {});
  return content;
}
