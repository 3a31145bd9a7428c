// Webhooks: list and create.

import { json, pages } from "../api.js";
import { element, field, formatDuration } from "../dom.js";
import { choiceBoxes } from "../widgets/boxes.js";
import { leaveFor, watchEdits } from "../widgets/edits.js";
import { rows } from "../widgets/rows.js";
import { showSecret } from "../widgets/secret.js";
import { KINDS } from "./changes.js";

const PAGE = 50;
/** Age in seconds of a change above which its receiver has failed: it is sent within a second, and again after several. */
const LATE = 60;

export async function webhooks({ report }) {
  const table = await rows({
    name: "Webhooks",
    next: pages(`admin/webhooks?limit=${PAGE}`),
    empty: "No webhooks yet. A webhook gets each change as a request to its URL.",
    columns: [
      ["Webhook", ({ id }) => element("a", { href: `#/webhooks/${id}` }, String(id))],
      ["URL", ({ url }) => element("code", {}, url)],
      ["Changes of", ({ kinds }) => kinds.join(", ") || "all kinds"],
      ["Late by", ({ enabled, lagSeconds }) => (enabled ? lateness(Math.round(lagSeconds)) : "–")],
      ["Waiting", ({ waiting }) => String(waiting)],
      ["Given up", ({ parked }) => (parked > 0 ? element("strong", { className: "problem" }, String(parked)) : "0")],
      ["", ({ enabled }) => !enabled && element("strong", { className: "problem" }, "disabled")],
    ],
  });
  return [element("h1", {}, "Webhooks"), table, newWebhook(report)];
}

/** Returns the age of the oldest change that a receiver lacks, in red if it does not take what it is sent. */
function lateness(seconds) {
  const text = formatDuration(seconds);
  return seconds > LATE ? element("strong", { className: "problem" }, `${text}: its receiver fails`) : text;
}

/** Returns the field of a URL, the choice of kinds, and a function that returns what they have. */
export function webhookFields({ url, kinds }) {
  const input = element("input", { id: "url", type: "url", required: true, maxLength: 2_000, value: url, autocomplete: "off" });
  const [boxes, chosen] = choiceBoxes("Changes of these kinds; of all if none is chosen", kinds, KINDS);
  return [[field("URL", input), boxes], () => ({ url: input.value, kinds: chosen() })];
}

function newWebhook(report) {
  const [fields, body] = webhookFields({ url: "", kinds: [] });
  const submit = (event) => {
    event.preventDefault();
    report(async () => {
      const { id, secret } = await json("POST", "admin/webhooks", { body: body() });
      watchEdits(event.target);
      await showSecret("The key of the signatures", secret);
      return id;
    }, (id) => leaveFor(`#/webhooks/${id}`), event.target);
  };
  return element("details", { className: "card" }, element("summary", { className: "button" }, "New webhook"),
    watchEdits(element("form", { id: "new-webhook", on: { submit } },
      ...fields, element("div", { className: "choices" }, element("button", {}, "Create")))));
}
