// Orders: place, list, advance and delete.

import { json, newIdempotencyKey, pages, scopes, send } from "../api.js";
import { element, field, formatTime } from "../dom.js";
import { ask } from "../widgets/dialog.js";
import { rows } from "../widgets/rows.js";

const PAGE = 50;
/** The state that follows each one. */
const NEXT = { placed: "approved", approved: "delivered" };

export async function orders({ parameters, done, report }) {
  const granted = await scopes();
  const isAdmin = granted.includes("admin");
  const pet = parameters.get("pet");
  const query = new URLSearchParams({ limit: PAGE, ...(pet && { petId: pet }) });

  const advance = ({ id, status }) => {
    const next = NEXT[status];
    report(() => json("PATCH", `store/order/${id}`, { body: { status: next, ...(next === "delivered" && { complete: true }) } }), done);
  };
  const remove = async ({ id }) => {
    if (await ask(`Delete order ${id}?`, [], { Delete: true, Keep: false })) await report(() => send("DELETE", `store/order/${id}`), done);
  };
  const button = (text, order, act, more = "") =>
    element("button", { className: `plain ${more}`, ariaLabel: `${text} order ${order.id}`, on: { click: () => act(order) } }, text);
  const table = await rows({
    name: "Orders",
    next: pages(`store/orders?${query}`),
    empty: pet ? "No orders for this pet." : "No orders yet.",
    columns: [
      ["Order", ({ id }) => String(id)],
      ["Pet", ({ petId }) => element("a", { href: `#/pets/${petId}` }, String(petId))],
      ["Quantity", ({ quantity }) => String(quantity)],
      ["Ships", ({ shipDate }) => (shipDate ? formatTime(shipDate) : "–")],
      ["Status", ({ status, complete }) => (complete ? `${status}, complete` : status)],
      ["", (order) => [
        isAdmin && NEXT[order.status] && button(order.status === "placed" ? "Approve" : "Deliver", order, advance),
        granted.includes("write:orders") && (isAdmin || (order.status !== "delivered" && !order.complete)) && button("Delete", order, remove, "bad"),
      ]],
    ],
  });
  return [
    element("div", { className: "title" }, element("h1", {}, pet ? `Orders for pet ${pet}` : "Orders"),
      pet && element("a", { href: "#/orders" }, "All orders")),
    granted.includes("write:orders") && placeForm(pet, report, done), table,
  ];
}

function placeForm(pet, report, done) {
  const petId = element("input", { id: "pet", type: "number", min: 1, required: true, value: pet ?? "" });
  const quantity = element("input", { id: "quantity", type: "number", min: 1, required: true, value: 1 });
  const ships = element("input", { id: "ships", type: "datetime-local" });
  const submit = (event) => {
    event.preventDefault();
    const idempotencyKey = newIdempotencyKey();
    const shipDate = ships.value ? new Date(ships.value).toISOString() : undefined;
    const body = { petId: Number(petId.value), quantity: Number(quantity.value), shipDate };
    report(() => json("POST", "store/order", { body, idempotencyKey }), done, event.target);
  };
  return element("form", { className: "filters", ariaLabel: "New order", on: { submit } },
    field("Number of the pet", petId), field("Quantity", quantity), field("Ships at", ships),
    element("button", {}, "Place order"));
}
