// The inventory: a bar with a part for each status, and the numbers.

import { element, formatNumber, svg } from "../dom.js";

const [WIDTH, HEIGHT] = [600, 12];

export const STATUSES = ["available", "pending", "sold"];

/** Returns the inventory. `isPartShown` says that the page shows a part of the store only. */
export function inventory(counts, isPartShown) {
  const total = STATUSES.reduce((sum, status) => sum + (counts[status] ?? 0), 0);
  const bar = svg("svg", {
    class: "inventory", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true",
  });
  let x = 0;
  for (const status of STATUSES) {
    const width = ((counts[status] ?? 0) / Math.max(total, 1)) * WIDTH;
    bar.append(svg("rect", { class: status, x, width, height: HEIGHT }));
    x += width;
  }
  return element("figure", { id: "inventory" }, bar,
    element("figcaption", { className: "legend" },
      isPartShown && element("span", { className: "quiet" }, "Whole store:"),
      ...STATUSES.map((status) =>
        element("a", { className: `state ${status}`, href: `#/pets?status=${status}` }, `${formatNumber(counts[status] ?? 0)} ${status}`))));
}
