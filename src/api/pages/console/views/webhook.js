// A webhook: its settings, the deliveries that have failed, and the last attempts, which are read again and again.

import { json, pages, send } from "../api.js";
import { element, formatExactTime, formatNumber, formatTime, long, wait } from "../dom.js";
import { announce } from "../widgets/announcement.js";
import { ask } from "../widgets/dialog.js";
import { changed, leaveFor, watchEdits } from "../widgets/edits.js";
import { askOverlap } from "../widgets/overlap.js";
import { rows } from "../widgets/rows.js";
import { showSecret } from "../widgets/secret.js";
import { webhookFields } from "./webhooks.js";

const PAGE = 50;
/** Time after which attempts are read again, in milliseconds. */
const EACH = 5_000;
/** Maximum number of characters of a response that are shown. */
const RESPONSE = 200;

export async function webhook({ id, signal, done, report }) {
  const path = `admin/webhooks/${encodeURIComponent(id)}`;
  const stored = await json("GET", path);
  const [attempts, deliveries] = [element("div", { id: "attempts" }), element("div", { id: "deliveries" })];
  let shown;

  /** Shows the last attempts and, if there are others than before, what is left to deliver. */
  async function showAttempts() {
    const read = await json("GET", `${path}/attempts`);
    if (JSON.stringify(read) === shown) return;
    const [{ enabled, parked }, table, made] = await Promise.all([json("GET", path), deliveryTable(path, done, report), attemptTable(read)]);
    const focused = deliveries.contains(document.activeElement) && document.activeElement.ariaLabel;
    deliveries.replaceChildren(table, ...(enabled && parked > 0 ? [retryAll(path, done, report)] : []));
    attempts.replaceChildren(made);
    if (focused) [...deliveries.querySelectorAll("button")].find((it) => it.ariaLabel === focused)?.focus({ preventScroll: true });
    shown = JSON.stringify(read);
  }

  async function follow() {
    while (!signal.aborted) {
      await wait(EACH);
      // While a change is made, its own outcome is shown.
      if (document.hidden || signal.aborted || document.getElementById("main").inert) continue;
      const failure = await showAttempts().then(() => null, (it) => it);
      if (failure) await wait(failure.retryAfter * 1_000);
    }
  }

  await showAttempts();
  follow();
  return [
    element("p", {}, element("a", { className: "back", href: "#/webhooks" }, "← All webhooks")),
    element("div", { className: "title" },
      element("h1", {}, `Webhook ${stored.id}`), !stored.enabled && element("strong", { className: "problem" }, "disabled")),
    settings(stored, path, { done, report, showAttempts }),
    element("section", { className: "card", ariaLabel: "Deliveries" }, element("h2", {}, "Deliveries that have failed or wait"),
      deliveries),
    element("section", { className: "card", ariaLabel: "Attempts" }, element("h2", {}, "Last attempts"), attempts),
  ];
}

function settings(stored, path, { done, report, showAttempts }) {
  const [fields, body] = webhookFields(stored);
  const change = (changes, form) => report(() => json("PATCH", path, { body: changes }), done, form);
  const submit = (event) => {
    event.preventDefault();
    // Others may have changed the rest.
    const mine = changed(body(), stored);
    if (Object.keys(mine).length === 0) return announce("Nothing has changed.");
    change(mine, event.target);
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
    if (body().url !== stored.url) {
      outcome.textContent = "Save the URL first: a test is sent to the saved one.";
      return;
    }
    report(() => json("POST", `${path}/test`), ({ status, error, durationSeconds }) => {
      const time = `after ${formatNumber(durationSeconds)} s`;
      outcome.textContent = error ? `Not accepted: ${error}, ${time}.` : `Accepted with status ${status} ${time}.`;
      return showAttempts();
    });
  };
  const rotate = async () => {
    const overlap = await askOverlap(`Rotate the key of the signatures of webhook ${stored.id}?`,
      "A new key replaces it. How long are requests signed with the old one, too?");
    if (overlap === undefined) return;
    await report(async () => {
      const { secret } = await json("POST", `${path}/rotate`, { body: { overlap } });
      await showSecret("The new key of the signatures", secret);
    }, done);
  };
  const button = (text, id, act, more = "") =>
    element("button", { id, type: "button", className: `plain ${more}`, on: { click: act } }, text);
  return watchEdits(element("form", { id: "webhook-form", className: "card", on: { submit } },
    ...fields,
    element("div", { className: "choices" },
      element("button", { id: "save" }, "Save"),
      stored.enabled && button("Send a test", "test", test),
      button("Rotate the key", "rotate", rotate),
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
      ["Reason", ({ lastError }) => long(lastError ?? "waits for the one before it")],
      ["", ({ position }) =>
        element("button", { className: "plain", ariaLabel: `Send again: position ${position}`, on: { click: () => retry(position) } }, "Send again")],
    ],
  });
}

/** Returns the button that sends the deliveries again that were given up. */
function retryAll(path, done, report) {
  const retry = () => report(async () => {
    const { deliveries } = await json("POST", `${path}/deliveries/retry`);
    announce(deliveries === 1 ? "1 delivery is sent again." : `${formatNumber(deliveries)} deliveries are sent again.`);
  }, done);
  return element("button", { id: "retry-all", className: "plain", on: { click: retry } }, "Send all again");
}

function attemptTable(attempts) {
  return rows({
    name: "Attempts",
    next: Object.assign(async () => attempts, { isLast: () => true }),
    empty: "None yet.",
    columns: [
      ["Time", ({ at }) => formatExactTime(at)],
      ["Position", ({ position }) => (position === undefined ? "test" : String(position))],
      ["Outcome", ({ status, error }) => (error ? element("span", { className: "problem long" }, error) : `accepted with status ${status}`)],
      ["Duration", ({ durationSeconds }) => `${formatNumber(durationSeconds)} s`],
      ["Response", ({ response }) => (response ? element("code", {}, beginning(response)) : "–")],
    ],
  });
}

const beginning = (text) => (text.length > RESPONSE ? `${text.slice(0, RESPONSE)}…` : text);
