// Orders: place, find, advance and delete. The list follows the record of changes.

import { follow, json, newIdempotencyKey, pages, scopes, send } from "../api.js";
import { element, field, formatTime, keepFocus, nameOf, shortTime } from "../dom.js";
import { announce } from "../widgets/announcement.js";
import { ask } from "../widgets/dialog.js";
import { watchEdits } from "../widgets/edits.js";
import { foldButton } from "../widgets/fold.js";
import { lookup } from "../widgets/lookup.js";
import { outdatedNote } from "../widgets/outdated.js";
import { soon } from "../widgets/patience.js";
import { callerNamed } from "../widgets/people.js";
import { thumbnail } from "../widgets/pet_card.js";
import { rows } from "../widgets/rows.js";

/** Number of orders in a page, of which the pets are read with one request. */
const PAGE = 20;
/** Number of a caller that has no orders: the last one. */
const NOBODY = Number.MAX_SAFE_INTEGER;
/** The state that follows each one. */
const NEXT = { placed: "approved", approved: "delivered" };
const STATUSES = ["placed", "approved", "delivered"];

export async function orders({ parameters, signal, done, report }) {
  const granted = await scopes();
  const isAdmin = granted.includes("admin");
  const filter = Object.fromEntries(["number", "pet", "by", "status"].map((name) => [name, parameters.get(name)?.trim()]));
  const caller = filter.by && await callerNamed(filter.by);
  const query = new URLSearchParams({
    sort: "-id", limit: PAGE, ...(filter.pet && { petId: filter.pet }), ...(filter.by && { callerId: caller?.id ?? NOBODY }),
    ...(filter.status && { status: filter.status }),
  });
  const petOf = petLinks(granted.includes("read:pets"), signal);
  const [note, showNote] = outdatedNote(done);

  const wasDeleted = (id, change) => ifGone(() => {
    change();
    announce(`Order ${id} was deleted by somebody else.`);
    return null;
  });
  // They keep the row at its place, and change it.
  const advance = ({ id, status }, change) => {
    const next = NEXT[status];
    const body = { status: next, ...(next === "delivered" && { complete: true }) };
    report(() => json("PATCH", `store/order/${id}`, { body }).catch(wasDeleted(id, change)), (order) => {
      change(order);
      announce(`Order ${id} is ${next}.`);
    });
  };
  const remove = async ({ id }, change) => {
    const isSure = await ask(`Delete order ${id}?`, [], { Delete: true, Keep: false });
    if (!isSure) return;
    await report(() => send("DELETE", `store/order/${id}`).catch(wasDeleted(id, change)), () => {
      change();
      announce(`Order ${id} is deleted.`);
    });
  };
  // The second click of a double click would be on the button for the state that follows, and so would a key that is held down.
  const button = (text, order, act, more = "") => {
    const click = ({ detail }) => detail < 2 && act();
    const keydown = (event) => event.repeat && event.preventDefault();
    return element("button", { className: `plain ${more}`, ariaLabel: `${text} order ${order.id}`, on: { click, keydown } }, text);
  };
  /** Follows the record, and shows what it says of the orders in the rows. New orders are read. */
  const live = (_, { put, get }) => {
    if (!granted.includes("read:changes")) return;
    const created = new Set();
    const showNew = soon(async () => {
      const stored = await json("GET", `store/orders?${query}`);
      for (const order of stored.reverse()) if (created.has(order.id) && !get(order.id)) put(order);
      created.clear();
    }, signal);
    const changed = ({ kind, resource, action, data = {} }) => {
      if (kind !== "order") return showNote();
      const id = Number(resource);
      const shown = get(id);
      if (action === "created" && !filter.number) {
        created.add(id);
        showNew();
      } else if (shown && action === "deleted") {
        shown.change();
        announce(`Order ${id} is deleted.`);
      } else if (shown) {
        const values = ["status", "complete", "shipDate"].filter((name) => name in data).map((name) => [name, data[name][1] ?? undefined]);
        shown.change({ ...shown.item, ...Object.fromEntries(values) });
      }
    };
    follow({ filters: "kind=order,import,restore", changed, missed: showNote, signal });
  };
  const names = Object.keys(filter).filter((name) => filter[name]);
  const none = names.length > 0 ? "No order matches." : "No orders yet.";
  // Without any scope for orders, the response says which is missing.
  const canRead = granted.includes("read:orders") || !granted.includes("write:orders");
  const table = canRead && await rows({
    name: "Orders",
    next: filter.number ? oneOrder(filter.number) : pages(`store/orders?${query}`),
    empty: names.join() === "pet" ? "No orders for this pet." : none,
    loaded: live,
    columns: [
      ["Order", ({ id }) => String(id)],
      ["Pet", ({ petId }) => petOf(petId)],
      ["Quantity", ({ quantity }) => String(quantity)],
      ["Placed", ({ createdAt }) => shortTime(createdAt)],
      ...(isAdmin ? [["By", ({ username, caller }) => placedBy(username ?? caller)]] : []),
      ["Ships", ({ shipDate }) => (shipDate ? formatTime(shipDate) : "–")],
      ["Status", ({ status, complete }) => element("span", { className: `state ${status}` }, complete ? `${status}, complete` : status)],
      ["", (order, change) => [
        isAdmin && NEXT[order.status]
          && button(order.status === "placed" ? "Approve" : "Deliver", order, () => advance(order, change), "advance"),
        granted.includes("write:orders") && (isAdmin || (order.status !== "delivered" && !order.complete))
          && button("Delete", order, () => remove(order, change)),
      ]],
    ],
  });
  return [
    element("div", { className: "title" }, element("h1", {}, filter.pet ? `Orders for pet ${filter.pet}` : "Orders"),
      filter.pet && element("a", { href: "#/orders" }, "All orders")),
    granted.includes("write:orders") && placeForm(parameters, report, done), table && filterForm(parameters, isAdmin), note, table,
  ];
}

/** Returns a link to the orders that a caller has placed. */
const placedBy = (by) => (by ? element("a", { href: `#/orders?${new URLSearchParams({ by })}` }, nameOf(by)) : "–");

/**
 * Returns a function that returns a link to the pet with a number, which gets its picture and its name when they are there. The row of
 * one that is deleted says so.
 */
function petLinks(canRead, signal) {
  const find = lookup(async (ids) => new Map((await json("GET", `pet?id=${ids}`, { signal })).map((pet) => [pet.id, pet])), signal);
  return (id) => {
    if (!canRead) return String(id);
    const link = element("a", { className: "ordered", href: `#/pets/${id}` }, String(id));
    find(id).then((pet) => {
      if (pet) return link.replaceChildren(element("span", { className: "picture" }, thumbnail(pet)), nameOf(pet.name));
      const row = link.closest("tr");
      link.replaceWith(`${id} (the pet was deleted)`);
      row?.classList.add("petless");
      if (row) keepFocus(row.closest("table"));
    }, () => {});
    return link;
  };
}

/** Returns a function like that of `pages`, for the order with a number. */
function oneOrder(number) {
  let isRead = false;
  const page = async () => {
    const order = await json("GET", `store/order/${encodeURIComponent(number)}`).catch(ifGone(() => null));
    isRead = true;
    return order ? [order] : [];
  };
  return Object.assign(page, { isLast: () => isRead });
}

/** Returns a handler of failures, which calls `gone` if what was wanted does not exist. */
const ifGone = (gone) => (failure) => {
  if (failure.status !== 404) throw failure;
  return gone();
};

/** Returns the form of the filters, which are in the URL. */
function filterForm(parameters, isAdmin) {
  const value = (name) => parameters.get(name) ?? "";
  const input = (name, type) => element("input", { id: `only-${name}`, name, type, min: 1, value: value(name), autocomplete: "off" });
  const statuses = element("select", { id: "state", name: "status" }, element("option", { value: "" }, "all"),
    ...STATUSES.map((it) => element("option", { selected: it === value("status") }, it)));
  const submit = (event) => {
    event.preventDefault();
    const filled = [...new FormData(event.target)].filter(([, it]) => it.trim() !== "");
    location.hash = `#/orders?${new URLSearchParams(filled)}`;
  };
  return element("form", { id: "order-filters", className: "filters", ariaLabel: "Filters", on: { submit } },
    field("Number of the order", input("number", "number")), foldButton(parameters.size > 0), field("Number of the pet", input("pet", "number")),
    isAdmin && field("Placed by", input("by", "search")),
    field("Status", statuses), element("button", { className: "plain" }, "Show"));
}

function placeForm(parameters, report, done) {
  const petId = element("input", { id: "pet", type: "number", min: 1, required: true, value: parameters.get("pet") ?? "" });
  const quantity = element("input", {
    id: "quantity", type: "number", min: 1, required: true, value: 1, attributes: parameters.has("new") ? { "data-focus": "" } : {},
  });
  const ships = element("input", { id: "ships", type: "datetime-local" });
  const submit = async (event) => {
    event.preventDefault();
    const idempotencyKey = newIdempotencyKey();
    const shipDate = ships.value ? new Date(ships.value).toISOString() : undefined;
    const body = { petId: Number(petId.value), quantity: Number(quantity.value), shipDate };
    const place = () => report(() => json("POST", "store/order", { body, idempotencyKey }), done, event.target);
    const question = [element("p", {}, "The date is in the past.")];
    if (!ships.value || new Date(ships.value) > new Date()) return place();
    if (await ask(`Ship at ${formatTime(shipDate)}?`, question, { "Place order": true, "Back to the form": false })) await place();
  };
  return watchEdits(element("form", { className: "filters", ariaLabel: "New order", on: { submit } },
    field("Number of the pet", petId), field("Quantity", quantity), field("Ships at", ships),
    element("button", {}, "Place order")));
}
