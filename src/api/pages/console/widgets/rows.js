// A long list as a table, one page at a time. On a narrow screen, each row is a block with the names of its cells.

import { element } from "../dom.js";
import { loadProblem } from "./problem.js";

/**
 * Returns the table of the items that `next` returns, page by page, until it returns null. `columns` are pairs of a title and a
 * function that returns the content of a cell; `empty` is the text of an empty list.
 */
export async function rows({ name, next, columns, empty }) {
  const body = element("tbody", { role: "rowgroup" });
  const more = element("button", { className: "plain", hidden: true, on: { click: () => showMore() } }, "Show more");
  const end = element("div", {}, more);
  const table = element("table", { className: "rows", role: "table", ariaLabel: name },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" },
      ...columns.map(([title]) => (title
        ? element("th", { role: "columnheader", scope: "col" }, title)
        : element("td", { role: "cell" }))))),
    body);

  function row(item) {
    return element("tr", { role: "row" }, ...columns.map(([title, cell]) =>
      element("td", { role: "cell", attributes: { "data-title": title } }, ...[cell(item)].flat().filter(Boolean))));
  }

  async function load() {
    const items = await next();
    body.append(...(items ?? []).map(row));
    more.hidden = items === null || next.isLast();
    if (more.hidden && !body.hasChildNodes()) table.replaceWith(element("p", { className: "quiet" }, empty));
  }

  async function showMore(pause) {
    // The button to try again calls this, too.
    if (more.disabled) return;
    more.disabled = true;
    try {
      await load();
      end.replaceChildren(more);
    } catch (failure) {
      end.replaceChildren(loadProblem(failure, showMore, pause));
    } finally {
      more.disabled = false;
    }
  }

  const content = element("div", {}, table, end);
  await load();
  return content;
}
