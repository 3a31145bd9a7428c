// Changes as a table, which new ones are added to: when, what and by whom.

import { changePages, follow } from "../api.js";
import { element, formatTime, long, nameOf } from "../dom.js";
import { rows } from "./rows.js";

/**
 * Returns the table of the changes with these filters. It follows the record until `signal` is aborted: calls `changed` for each new
 * change, and `missed` if some were lost.
 */
export function changeTable(filters, { signal, changed = () => {}, missed }) {
  const next = changePages(filters);
  const loaded = ([newest], put) => follow({
    filters,
    // Behind an empty list, everything is new: also what came before the stream was open.
    last: newest?.position ?? (next.isLast() ? "0" : undefined),
    changed: (change) => {
      put(change);
      changed(change);
    },
    missed,
    signal,
  });
  return rows({
    name: "Changes",
    next,
    loaded,
    empty: "No changes in the record.",
    columns: [
      ["Time", ({ at }) => formatTime(at)],
      ["What", ({ kind, resource, action }) => [link(kind, resource), ` ${action}`]],
      ["By", ({ actor }) => nameOf(actor ?? "–")],
      ["Facts", ({ data = {} }) => long(Object.entries(data).filter(isFact).map(fact).join(", "))],
      ["Request", ({ requestId }) => element("code", {}, requestId ?? "–")],
    ],
  });
}

function link(kind, resource) {
  const views = { pet: "pets", caller: "callers", webhook: "webhooks" };
  const text = `${kind} ${resource}`;
  return views[kind] ? element("a", { href: `#/${views[kind]}/${resource}` }, text) : text;
}

/** Returns false for a list that a new pet does not have. */
const isFact = ([, value]) => !(Array.isArray(value) && value[0] === null && value[1]?.length === 0);

/** Returns a fact as text: `status available → sold`, `tags – → small, calm`, `was Rex`. */
function fact([name, value]) {
  return `${name} ${Array.isArray(value) ? value.map(text).join(" → ") : text(value)}`;
}

/** Returns a value as text: an object by its name, if it has one. */
function text(value) {
  if (value === null) return "–";
  if (Array.isArray(value)) return value.map(text).join(", ") || "–";
  return typeof value === "object" ? value.name ?? JSON.stringify(value) : String(value);
}
