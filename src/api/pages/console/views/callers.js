// Callers: search, list and create.

import { json, pages } from "../api.js";
import { element, field, long, nameOf } from "../dom.js";
import { leaveFor, watchEdits } from "../widgets/edits.js";
import { callerNamed } from "../widgets/people.js";
import { rows } from "../widgets/rows.js";
import { scopeBoxes } from "../widgets/scopes.js";

const PAGE = 50;
export const PLANS = ["free", "pro", "enterprise"];

export async function callers({ parameters, report }) {
  const prefix = parameters.get("name") ?? "";
  const query = new URLSearchParams({ limit: PAGE, ...(prefix && { name: prefix }) });
  const search = element("input", { id: "prefix", type: "search", maxLength: 64, value: prefix });
  const submit = (event) => {
    event.preventDefault();
    location.hash = search.value ? `#/callers?${new URLSearchParams({ name: search.value })}` : "#/callers";
  };
  const table = await rows({
    name: "Callers",
    next: pages(`admin/callers?${query}`),
    empty: "No caller matches.",
    columns: [
      ["Name", ({ id, name, username }) => element("a", { href: `#/callers/${id}` }, nameOf(username ?? name))],
      ["Plan", ({ plan }) => plan],
      ["Scopes", ({ scopes }) => long(scopes.join(", ") || "–")],
      ["Keys and clients", ({ credentials }) => String(credentials)],
      ["", ({ disabled }) => disabled && element("strong", { className: "problem" }, "disabled")],
    ],
  });
  return [
    element("h1", {}, "Callers"),
    element("form", { className: "filters", attributes: { role: "search" }, on: { submit } },
      field("Name begins with", search), element("button", { className: "plain" }, "Search")),
    table, newCaller(report), newStaff(report),
  ];
}

function newCaller(report) {
  const name = element("input", { id: "name", required: true, maxLength: 64, autocomplete: "off" });
  const plan = element("select", { id: "plan" }, ...PLANS.map((it) => element("option", {}, it)));
  const [boxes, chosen] = scopeBoxes(["read:pets", "write:pets", "read:orders", "write:orders"]);
  const submit = (event) => {
    event.preventDefault();
    const body = { name: name.value, plan: plan.value, scopes: chosen() };
    report(() => json("POST", "admin/callers", { body }), ({ id }) => leaveFor(`#/callers/${id}`), event.target);
  };
  return element("details", { className: "card" }, element("summary", { className: "button" }, "New caller"),
    watchEdits(element("form", { id: "new-caller", on: { submit } },
      field("Name", name), field("Plan", plan), boxes, element("div", { className: "choices" }, element("button", {}, "Create")))));
}

/** Returns the form of an account for somebody who signs in with a name and a password. */
function newStaff(report) {
  const username = element("input", { id: "username", required: true, maxLength: 64, autocomplete: "off" });
  const password = element("input", { id: "password", type: "password", required: true, minLength: 8, maxLength: 128, autocomplete: "new-password" });
  const plan = element("select", { id: "staff-plan" }, ...PLANS.map((it) => element("option", { selected: it === "pro" }, it)));
  const [boxes, chosen] = scopeBoxes(["read:pets", "write:pets", "read:orders", "write:orders", "read:changes"]);
  /** The caller of the account, once it is made: what comes after it may fail, and is repeated. */
  let made;
  const create = async () => {
    if (made?.username !== username.value) {
      const body = [{ username: username.value, password: password.value }];
      const [{ id }] = await json("POST", "user/createWithList", { body });
      made = { username: username.value, id };
    }
    const { id } = await callerNamed(`user:${made.id}`);
    await json("PATCH", `admin/callers/${id}`, { body: { plan: plan.value, scopes: chosen() } });
    return id;
  };
  const submit = (event) => {
    event.preventDefault();
    report(create, (id) => leaveFor(`#/callers/${id}`), event.target);
  };
  return element("details", { className: "card" }, element("summary", { className: "button" }, "New staff account"),
    watchEdits(element("form", { id: "new-staff", on: { submit } },
      field("Username", username), field("Password, of at least 8 characters", password), field("Plan", plan), boxes,
      element("div", { className: "choices" }, element("button", {}, "Create")))));
}
