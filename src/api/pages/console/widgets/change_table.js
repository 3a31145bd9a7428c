// Changes as a table, which new ones are added to: when, what and by whom.

import { changePages, follow } from "../api.js";
import { element, long, shortTime } from "../dom.js";
import { changeText } from "./change_text.js";
import { people } from "./people.js";
import { rows } from "./rows.js";

/** Maximum number of characters of an identifier that is shown as a whole. */
const LONGEST = 16;

/**
 * Returns the table of the changes with these filters. It follows the record until `signal` is aborted: calls `changed` for each new
 * change, and `missed` if some were lost. `act` returns a button for a change, or null.
 */
export async function changeTable(filters, { signal, changed = () => {}, missed, act = () => null }) {
  const by = await people(signal);
  const next = changePages(filters);
  const loaded = ([newest], { put }) => follow({
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
      ["Time", ({ at }) => shortTime(at)],
      ["What", ({ kind, resource, action }) => [link(kind, resource), ` ${action}`]],
      ["By", ({ actor }) => by(actor)],
      ["Facts", (change) => [long(changeText(change)), " ", act(change)]],
      ["", ({ requestId }) => requestId && element("details", {}, element("summary", {}, "Request"), element("code", {}, requestId))],
    ],
  });
}

function link(kind, resource) {
  const views = { pet: "pets", caller: "callers", webhook: "webhooks" };
  // That of an image is long.
  const text = `${kind} ${resource.length > LONGEST ? `${resource.slice(0, 8)}…` : resource}`;
  return element(views[kind] ? "a" : "span", { title: resource, ...(views[kind] && { href: `#/${views[kind]}/${resource}` }) }, text);
}
