// A caller: its plan and scopes, its keys and clients, and its requests by day.

import { ADDRESS, json, pages, send } from "../api.js";
import { element, field, formatTime, isolated, long, nameOf, shortTime } from "../dom.js";
import { announce } from "../widgets/announcement.js";
import { days } from "../widgets/days.js";
import { ask } from "../widgets/dialog.js";
import { changed, leaveFor, watchEdits } from "../widgets/edits.js";
import { askOverlap } from "../widgets/overlap.js";
import { rows } from "../widgets/rows.js";
import { scopeBoxes } from "../widgets/scopes.js";
import { showSecret } from "../widgets/secret.js";
import { PLANS } from "./callers.js";

const PAGE = 50;
const DAY = 86_400;

export async function caller({ id, done, report }) {
  const path = `admin/callers/${encodeURIComponent(id)}`;
  const [stored, usage] = await Promise.all([json("GET", path), json("GET", `${path}/usage`)]);
  const name = stored.username ?? stored.name;
  const remove = async () => {
    const question = [element("p", {}, "Its keys and clients are deleted too, and so is the account of a user. Orders are kept.")];
    if (await ask(`Delete ${isolated(name)}?`, question, { Delete: true, Keep: false })) {
      await report(() => send("DELETE", path), () => leaveFor("#/callers"));
    }
  };
  return [
    element("p", {}, element("a", { className: "back", href: "#/callers" }, "← All callers")),
    element("div", { className: "title" },
      element("h1", { title: stored.name }, name), stored.disabled && element("strong", { className: "problem" }, "disabled")),
    element("div", { className: "columns" },
      settings(stored, path, { done, report, remove }),
      element("section", { className: "card", ariaLabel: "Requests" }, element("h2", {}, "Requests by day"), days(usage))),
    element("section", { className: "card", ariaLabel: "Keys" }, element("h2", {}, "Keys"),
      await keyTable(path, done, report), newKey(stored, path, done, report)),
    element("section", { className: "card", ariaLabel: "Clients" }, element("h2", {}, "OAuth clients"),
      await clientTable(path, done, report), newClient(stored, path, done, report)),
  ];
}

function settings(stored, path, { done, report, remove }) {
  const plan = element("select", { id: "plan" },
    ...PLANS.map((it) => element("option", { selected: it === stored.plan }, it)));
  const [boxes, chosen] = scopeBoxes(stored.scopes);
  const change = (body, form) => report(() => json("PATCH", path, { body }), done, form);
  const submit = (event) => {
    event.preventDefault();
    // Others may have changed the rest.
    const mine = changed({ plan: plan.value, scopes: chosen() }, stored);
    if (Object.keys(mine).length === 0) return announce("Nothing has changed.");
    change(mine, event.target);
  };
  const toggle = async () => {
    const question = [element("p", {}, "Its keys, clients and sessions get 401 within a second, until it is enabled again.")];
    if (!stored.disabled && !(await ask(`Disable ${isolated(stored.username ?? stored.name)}?`, question, { Disable: true, Keep: false }))) return;
    change({ disabled: !stored.disabled });
  };
  return watchEdits(element("form", { id: "caller-form", className: "card", on: { submit } },
    field("Plan", plan), boxes,
    element("div", { className: "choices" },
      element("button", { id: "save" }, "Save"),
      element("button", { id: "toggle", type: "button", className: "plain", on: { click: toggle } }, stored.disabled ? "Enable" : "Disable"),
      element("button", { id: "delete", type: "button", className: "plain bad", on: { click: remove } }, "Delete"))));
}

const isOver = ({ revokedAt, expiresAt }) => revokedAt || (expiresAt && new Date(expiresAt) <= new Date());

/** Columns that keys and clients have. */
const COLUMNS = [
  ["Scopes", ({ scopes }) => long(scopes.join(", ") || "–")],
  ["Created", ({ createdAt }) => shortTime(createdAt)],
  ["Last use, written once a minute", ({ lastUsedAt }) => (lastUsedAt ? shortTime(lastUsedAt) : "never")],
  ["Valid", ({ revokedAt, expiresAt }) => {
    if (revokedAt) return `revoked ${formatTime(revokedAt)}`;
    if (isOver({ expiresAt })) return `expired ${formatTime(expiresAt)}`;
    return expiresAt ? `until ${formatTime(expiresAt)}` : "without end";
  }],
];

function keyTable(path, done, report) {
  const revoke = async ({ id, hint }) => {
    const question = [element("p", {}, "Requests with it get 401 within a second.")];
    if (await ask(`Revoke ${hint}…?`, question, { Revoke: true, Keep: false })) await report(() => send("DELETE", `admin/keys/${id}`), done);
  };
  const rotate = async ({ id, hint }) => {
    const overlap = await askOverlap(`Rotate ${hint}…?`, "A new key replaces it. How long does the old one stay valid?");
    if (overlap === undefined) return;
    await report(async () => {
      await showKey("The new key", await json("POST", `admin/keys/${id}/rotate`, { body: { overlap } }));
    }, done);
  };
  const button = (text, key, act, more = "") =>
    element("button", { className: `plain ${more}`, ariaLabel: `${text} key ${key.id}`, on: { click: () => act(key) } }, text);
  return rows({
    name: "Keys",
    next: pages(`${path}/keys?limit=${PAGE}`),
    empty: "No keys yet.",
    columns: [
      ["Key", ({ id, hint }) => [element("code", {}, hint ? `${hint}…` : "–"), ` (${id})`]],
      ["Name", ({ name }) => nameOf(name ?? "–")],
      ...COLUMNS,
      ["", (key) => !isOver(key) && [button("Rotate", key, rotate), button("Revoke", key, revoke, "bad")]],
    ],
  });
}

/** Shows a key with what its user needs besides. */
const showKey = (title, { id, key }) =>
  showSecret(title, key, { "Number of the key": String(id), Address: ADDRESS, "To try it": `curl -H 'api_key: ${key}' '${ADDRESS}/limits'` });

function newKey(stored, path, done, report) {
  const [boxes, chosen] = scopeBoxes(stored.scopes, stored.scopes);
  const name = element("input", { id: "key-name", maxLength: 100, autocomplete: "off" });
  const lifetime = element("input", { id: "lifetime", type: "number", min: 1, max: 3_650 });
  const submit = (event) => {
    event.preventDefault();
    const expiresIn = lifetime.value ? Number(lifetime.value) * DAY : undefined;
    report(async () => {
      const made = await json("POST", `${path}/keys`, { body: { name: name.value.trim() || undefined, scopes: chosen(), expiresIn } });
      watchEdits(event.target);
      await showKey("The key", made);
    }, done, event.target);
  };
  return element("details", {}, element("summary", { className: "button" }, "New key"),
    watchEdits(element("form", { id: "new-key", on: { submit } },
      field("Name, for people", name), boxes, field("Days until it expires; empty for never", lifetime),
      element("div", { className: "choices" }, element("button", {}, "Create")))));
}

function clientTable(path, done, report) {
  const revoke = async ({ id, client_id: name }) => {
    const question = [element("p", {}, "It and its tokens get 401 within a second.")];
    if (await ask(`Revoke ${name}?`, question, { Revoke: true, Keep: false })) await report(() => send("DELETE", `admin/clients/${id}`), done);
  };
  return rows({
    name: "OAuth clients",
    next: pages(`${path}/clients?limit=${PAGE}`),
    empty: "No clients yet. A client gets tokens for its scopes.",
    columns: [
      ["Client", (client) => element("code", {}, client.client_id)],
      ...COLUMNS,
      ["", (client) => !isOver(client)
        && element("button", { className: "plain bad", ariaLabel: `Revoke client ${client.id}`, on: { click: () => revoke(client) } }, "Revoke")],
    ],
  });
}

function newClient(stored, path, done, report) {
  const [boxes, chosen] = scopeBoxes(stored.scopes, stored.scopes);
  const submit = (event) => {
    event.preventDefault();
    report(async () => {
      const created = await json("POST", `${path}/clients`, { body: { scopes: chosen() } });
      watchEdits(event.target);
      const { client_id: name, client_secret: secret } = created;
      const tokens = `${ADDRESS}/oauth/token`;
      await showSecret(`The secret of ${name}`, secret,
        { Client: name, "Address of tokens": tokens, "To get a token": `curl -u '${name}:${secret}' -d grant_type=client_credentials '${tokens}'` });
    }, done, event.target);
  };
  return element("details", {}, element("summary", { className: "button" }, "New client"),
    watchEdits(element("form", { id: "new-client", on: { submit } },
      boxes, element("div", { className: "choices" }, element("button", {}, "Create")))));
}
