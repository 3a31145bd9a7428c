// Requests by day: a chart of bars, and the same numbers as a table for screen readers.

import { element, formatNumber, svg } from "../dom.js";

const [WIDTH, HEIGHT, GAP] = [600, 120, 4];

export function days(history) {
  const totals = history.map(({ admitted, refused }) => admitted + refused);
  const most = Math.max(...totals, 0);
  const sum = totals.reduce((sum, total) => sum + total, 0);
  const sumRefused = history.reduce((sum, { refused }) => sum + refused, 0);
  if (sum === 0) return element("p", { className: "quiet" }, "No requests in the last 30 days.");
  const chart = svg("svg", { class: "days", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
  const step = WIDTH / history.length;
  history.forEach(({ day, admitted, refused }, place) => {
    const scale = (number) => (number / most) * HEIGHT;
    const bar = (name, number, below) => svg("rect", {
      class: name, x: place * step, width: step - GAP, y: HEIGHT - scale(number + below), height: scale(number),
    });
    const title = `${day}: ${formatNumber(admitted)} admitted, ${formatNumber(refused)} refused`;
    chart.append(svg("g", {}, svg("title", {}, title), bar("admitted", admitted, 0), bar("refused", refused, admitted)));
  });
  return element("figure", {},
    chart,
    element("figcaption", { className: "quiet" },
      `${history[0].day} to ${history.at(-1).day}: ${formatNumber(sum)} requests, ${formatNumber(sumRefused)} of them refused; `
        + `at most ${formatNumber(most)} in a day.`),
    table(history.filter(({ admitted, refused }) => admitted + refused > 0)));
}

function table(history) {
  const row = (cell, ...texts) => element("tr", {}, ...texts.map((text) => element(cell, {}, text)));
  return element("details", {},
    element("summary", {}, "As a table"),
    element("table", {},
      element("thead", {}, row("th", "Day (UTC)", "Admitted", "Refused")),
      element("tbody", {}, ...history.map(({ day, admitted, refused }) =>
        row("td", day, formatNumber(admitted), formatNumber(refused))))));
}
