// A webhook: its settings, and the deliveries that have failed.

import { json, pages, send } from "../api.js";
import { element, formatTime } from "../dom.js";
import { ask } from "../widgets/dialog.js";
import { leaveFor, watchEdits } from "../widgets/edits.js";
import { rows } from "../widgets/rows.js";
import { webhookFields } from "./webhooks.js";

const PAGE = 50;

export async function webhook({ id, done, report }) {
  const path = `admin/webhooks/${encodeURIComponent(id)}`;
  const stored = await json("GET", path);
  return [
    element("p", {}, element("a", { href: "#/webhooks" }, "← All webhooks")),
    element("div", { className: "title" },
      element("h1", {}, `Webhook ${stored.id}`), !stored.enabled && element("strong", { className: "problem" }, "disabled")),
    settings(stored, path, done, report),
    element("section", { className: "card", ariaLabel: "Deliveries" }, element("h2", {}, "Deliveries that have failed or wait"),
      await deliveryTable(path, done, report)),
  ];
}

function settings(stored, path, done, report) {
  const [fields, body] = webhookFields(stored);
  const change = (changes, form) => report(() => json("PATCH", path, { body: changes }), done, form);
  const submit = (event) => {
    event.preventDefault();
    change(body(), event.target);
  };
  const remove = async () => {
    const question = [element("p", {}, "Its deliveries are deleted too, also those that wait.")];
    if (await ask(`Delete webhook ${stored.id}?`, question, { Delete: true, Keep: false })) {
      await report(() => send("DELETE", path), () => leaveFor("#/webhooks"));
    }
  };
  const outcome = element("p", { id: "outcome", attributes: { role: "status" } });
  const test = () => {
    outcome.textContent = "";
    report(() => json("POST", `${path}/test`), ({ status, error, durationSeconds }) => {
      outcome.textContent = error ? `Not accepted: ${error}.` : `Accepted with status ${status} after ${durationSeconds} s.`;
    });
  };
  const button = (text, id, act, more = "") =>
    element("button", { id, type: "button", className: `plain ${more}`, on: { click: act } }, text);
  return watchEdits(element("form", { id: "webhook-form", className: "card", on: { submit } },
    ...fields,
    element("div", { className: "choices" },
      element("button", {}, "Save"),
      stored.enabled && button("Send a test", "test", test),
      button(stored.enabled ? "Disable" : "Enable", "toggle", () => change({ enabled: !stored.enabled })),
      button("Delete", "delete", remove, "bad")),
    outcome));
}

function deliveryTable(path, done, report) {
  const retry = (position) => report(() => send("POST", `${path}/deliveries/${position}/retry`), done);
  return rows({
    name: "Deliveries",
    next: pages(`${path}/deliveries?limit=${PAGE}`),
    empty: "None: everything was accepted.",
    columns: [
      ["Position", ({ position }) => String(position)],
      ["What", ({ type, resource }) => `${type} ${resource}`],
      ["Attempts", ({ attempts }) => String(attempts)],
      ["Next", ({ nextAt, parkedAt }) => (nextAt ? formatTime(nextAt) : `given up ${formatTime(parkedAt)}`)],
      ["Reason", ({ lastError }) => lastError ?? "waits for the one before it"],
      ["", ({ position }) =>
        element("button", { className: "plain", ariaLabel: `Send ${position} again`, on: { click: () => retry(position) } }, "Send again")],
    ],
  });
}
