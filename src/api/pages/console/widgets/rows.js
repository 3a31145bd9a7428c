// A long list as a table, one page at a time. On a narrow screen, each row is a block with the names of its cells.

import { element, keepFocus } from "../dom.js";
import { loadProblem } from "./problem.js";

/** Time for which a new row is marked, in milliseconds. */
const MARKED = 4_000;

/**
 * Returns the table of the items that `next` returns, page by page, until it returns null. `columns` are pairs of a title and a
 * function that returns the content of a cell. The function gets the item, and another one that shows the changed item in its row, or
 * removes the row of one that is gone. `empty` is the text of an empty list. `loaded` gets the first page, and functions: `put`
 * puts a new item before the others, and marks it for a moment; `get` returns the shown item with an id, `{ item, change }`.
 */
export async function rows({ name, next, columns, empty, loaded = () => {} }) {
  const body = element("tbody", { role: "rowgroup" });
  const more = element("button", { className: "plain more", hidden: true, on: { click: () => showMore() } }, "Show more");
  const end = element("div", {}, more);
  const table = element("table", { className: "rows", role: "table", ariaLabel: name, tabIndex: -1 },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" },
      ...columns.map(([title]) => (title
        ? element("th", { role: "columnheader", scope: "col" }, title)
        : element("td", { role: "cell" }))))),
    body);
  const none = element("p", { className: "quiet" }, empty);
  const list = element("div", {});
  const shownItems = new Map();
  let isLoading = false;

  function row(item) {
    const made = element("tr", { role: "row" });
    fill(made, item);
    return made;
  }

  function fill(made, item) {
    const change = (changed) => {
      if (JSON.stringify(changed) === JSON.stringify(shownItems.get(item.id)?.item)) return;
      shownItems.delete(item.id);
      if (changed) fill(made, changed);
      else made.remove();
      show();
      keepFocus((changed && made.querySelector("button")) ?? table);
    };
    shownItems.set(item.id, { item, change });
    made.replaceChildren(...columns.map(([title, cell]) =>
      element("td", { role: "cell", attributes: { "data-title": title } }, ...[cell(item, change)].flat().filter(Boolean))));
  }

  async function load() {
    const items = await next() ?? [];
    body.append(...items.map(row));
    more.hidden = next.isLast();
    show();
    return items;
  }

  /** Shows the table, or that it is empty. */
  function show() {
    const shown = body.hasChildNodes() || !more.hidden ? table : none;
    if (shown !== list.firstChild) list.replaceChildren(shown);
  }

  async function showMore(pause) {
    // The button to try again calls this, too.
    if (isLoading) return;
    isLoading = true;
    const hadFocus = end.contains(document.activeElement);
    let shown = more;
    try {
      await load();
    } catch (failure) {
      shown = loadProblem(failure, showMore, pause);
    }
    isLoading = false;
    end.replaceChildren(shown);
    if (!hadFocus || (document.activeElement !== document.body && document.activeElement !== more)) return;
    (more.hidden ? table : end.querySelector("button") ?? table).focus({ preventScroll: true });
  }

  function put(item) {
    const made = row(item);
    made.classList.add("marked");
    setTimeout(() => made.classList.remove("marked"), MARKED);
    body.prepend(made);
    show();
  }

  const content = element("div", {}, list, end);
  loaded(await load(), { put, get: (id) => shownItems.get(id) });
  return content;
}
