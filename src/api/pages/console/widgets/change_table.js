// Changes as a table: when, what and by whom.

import { element, formatTime } from "../dom.js";
import { rows } from "./rows.js";

export function changeTable(next) {
  return rows({
    name: "Changes",
    next,
    empty: "No changes in the record.",
    columns: [
      ["Time", ({ at }) => formatTime(at)],
      ["What", ({ kind, resource, action }) => [link(kind, resource), ` ${action}`]],
      ["By", ({ actor }) => actor ?? "–"],
      ["Facts", ({ data }) => (data ? Object.entries(data).map(fact).join(", ") : "")],
      ["Request", ({ requestId }) => element("code", {}, requestId ?? "–")],
    ],
  });
}

function link(kind, resource) {
  const views = { pet: "pets", caller: "callers", webhook: "webhooks" };
  const text = `${kind} ${resource}`;
  return views[kind] ? element("a", { href: `#/${views[kind]}/${resource}` }, text) : text;
}

/** Returns a fact as text: `status available → sold`. */
function fact([name, value]) {
  return `${name} ${Array.isArray(value) ? value.map((it) => it ?? "–").join(" → ") : value}`;
}
