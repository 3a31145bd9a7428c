// A limit as a meter, with the time until capacity returns.

import { element, formatDuration, formatNumber } from "../dom.js";

export function limit(name, { limit, remaining, reset }) {
  const left = `${formatNumber(remaining)} of ${formatNumber(limit)} requests left ${name}`;
  const more = remaining < limit ? `more in ${formatDuration(reset)}` : "";
  return element("div", { className: "limit" },
    element("div", { className: "figures" },
      element("span", { className: remaining ? "" : "spent" }, left), element("span", { className: "quiet" }, more)),
    element("meter", {
      className: remaining < limit * 0.2 ? "low" : "",
      max: limit,
      value: remaining,
      ariaLabel: `Requests left ${name}`,
    }));
}
