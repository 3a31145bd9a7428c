// Orders: place, list, advance and delete.

import { json, newIdempotencyKey, pages, scopes, send } from "../api.js";
import { element, field, formatTime, keepFocus, nameOf, wait } from "../dom.js";
import { announce } from "../widgets/announcement.js";
import { ask } from "../widgets/dialog.js";
import { watchEdits } from "../widgets/edits.js";
import { thumbnail } from "../widgets/pet_card.js";
import { isTemporary } from "../widgets/problem.js";
import { rows } from "../widgets/rows.js";

/** Number of orders in a page, of which the pets are read with one request. */
const PAGE = 20;
/** Time after which pets are read again after a failure, unless the service says another, in milliseconds. */
const AGAIN = 5_000;
/** The state that follows each one. */
const NEXT = { placed: "approved", approved: "delivered" };
const STATUSES = ["placed", "approved", "delivered"];

export async function orders({ parameters, signal, done, report }) {
  const granted = await scopes();
  const isAdmin = granted.includes("admin");
  const [pet, status] = [parameters.get("pet"), parameters.get("status")];
  const query = new URLSearchParams({ sort: "-id", limit: PAGE, ...(pet && { petId: pet }), ...(status && { status }) });
  const petOf = petLinks(granted.includes("read:pets"), signal);

  // They keep the row at its place, and change it.
  const advance = ({ id, status }, change) => {
    const next = NEXT[status];
    report(() => json("PATCH", `store/order/${id}`, { body: { status: next, ...(next === "delivered" && { complete: true }) } }), (order) => {
      change(order);
      announce(`Order ${id} is ${next}.`);
    });
  };
  const remove = async ({ id }, change) => {
    const isSure = await ask(`Delete order ${id}?`, [], { Delete: true, Keep: false });
    if (!isSure) return;
    await report(() => send("DELETE", `store/order/${id}`), () => {
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
  const none = pet ? "No orders for this pet." : "No orders yet.";
  // Without any scope for orders, the response says which is missing.
  const canRead = granted.includes("read:orders") || !granted.includes("write:orders");
  const table = canRead && await rows({
    name: "Orders",
    next: pages(`store/orders?${query}`),
    empty: status ? "No order matches." : none,
    columns: [
      ["Order", ({ id }) => String(id)],
      ["Pet", ({ petId }) => petOf(petId)],
      ["Quantity", ({ quantity }) => String(quantity)],
      ["Placed", ({ createdAt }) => formatTime(createdAt)],
      ...(isAdmin ? [["By", ({ username, caller }) => nameOf(username ?? caller ?? "–")]] : []),
      ["Ships", ({ shipDate }) => (shipDate ? formatTime(shipDate) : "–")],
      ["Status", ({ status, complete }) => (complete ? `${status}, complete` : status)],
      ["", (order, change) => [
        isAdmin && NEXT[order.status] && button(order.status === "placed" ? "Approve" : "Deliver", order, () => advance(order, change)),
        granted.includes("write:orders") && (isAdmin || (order.status !== "delivered" && !order.complete))
          && button("Delete", order, () => remove(order, change), "bad"),
      ]],
    ],
  });
  return [
    element("div", { className: "title" }, element("h1", {}, pet ? `Orders for pet ${pet}` : "Orders"),
      pet && element("a", { href: "#/orders" }, "All orders")),
    granted.includes("write:orders") && placeForm(parameters, report, done), table && filterForm(pet, status), table,
  ];
}

/**
 * Returns a function that returns a link to the pet with a number, which gets its picture and its name when they are there. Each pet is
 * read once, together with those that are wanted at the same time, and again after a failure that can pass; one that is deleted keeps its
 * number.
 */
function petLinks(canRead, signal) {
  const read = new Map();
  let wanted = [];
  let reading;
  const readPets = async (ids) => {
    try {
      return await json("GET", `pet?id=${ids}`, { signal });
    } catch (failure) {
      if (!isTemporary(failure) || signal.aborted) throw failure;
      await wait(failure.retryAfter * 1_000 || AGAIN);
      return readPets(ids);
    }
  };
  const readWanted = async () => {
    // Once all rows of the page are there.
    await null;
    const ids = wanted;
    wanted = [];
    return readPets(ids);
  };
  const readPet = (id) => {
    if (wanted.push(id) === 1) reading = readWanted();
    return reading.then((pets) => pets.find((pet) => pet.id === id));
  };
  return (id) => {
    if (!canRead) return String(id);
    if (!read.has(id)) read.set(id, readPet(id));
    const link = element("a", { className: "ordered", href: `#/pets/${id}` }, String(id));
    read.get(id).then((pet) => {
      if (pet) return link.replaceChildren(element("span", { className: "picture" }, thumbnail(pet)), nameOf(pet.name));
      const table = link.closest("table");
      link.replaceWith(`${id} (deleted)`);
      if (table) keepFocus(table);
    }, () => {});
    return link;
  };
}

/** Returns the form of the filter, which is in the URL. */
function filterForm(pet, status) {
  const statuses = element("select", { id: "state" }, element("option", { value: "" }, "all"),
    ...STATUSES.map((it) => element("option", { selected: it === status }, it)));
  const submit = (event) => {
    event.preventDefault();
    location.hash = `#/orders?${new URLSearchParams({ ...(pet && { pet }), ...(statuses.value && { status: statuses.value }) })}`;
  };
  return element("form", { id: "order-filters", className: "filters", ariaLabel: "Filters", on: { submit } },
    field("Status", statuses), element("button", { className: "plain" }, "Show"));
}

function placeForm(parameters, report, done) {
  const petId = element("input", { id: "pet", type: "number", min: 1, required: true, value: parameters.get("pet") ?? "" });
  const quantity = element("input", {
    id: "quantity", type: "number", min: 1, required: true, value: 1, attributes: parameters.has("new") ? { "data-focus": "" } : {},
  });
  const ships = element("input", { id: "ships", type: "datetime-local" });
  const submit = (event) => {
    event.preventDefault();
    const idempotencyKey = newIdempotencyKey();
    const shipDate = ships.value ? new Date(ships.value).toISOString() : undefined;
    const body = { petId: Number(petId.value), quantity: Number(quantity.value), shipDate };
    report(() => json("POST", "store/order", { body, idempotencyKey }), done, event.target);
  };
  return watchEdits(element("form", { className: "filters", ariaLabel: "New order", on: { submit } },
    field("Number of the pet", petId), field("Quantity", quantity), field("Ships at", ships),
    element("button", {}, "Place order")));
}
