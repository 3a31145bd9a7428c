// The inventory: a bar with a part for each status, and the numbers.

import { element, formatNumber, svg } from "../dom.js";

const [WIDTH, HEIGHT] = [600, 12];

export const STATUSES = ["available", "pending", "sold"];

export function inventory(counts) {
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
      ...STATUSES.map((status) =>
        element("span", { className: `state ${status}` }, `${formatNumber(counts[status] ?? 0)} ${status}`))));
}
