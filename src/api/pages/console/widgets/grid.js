// Endless grid: loads the next page before its end is reached, and keeps only the pages near the screen in the document.

import { element, keepFocus } from "../dom.js";
import { loadProblem } from "./problem.js";

/** Distances from the screen at which the next page is loaded, and beyond which a page is emptied. */
const [LOAD, KEEP] = ["800px", "1600px"];
/** Maximum number of pages without items that are loaded one after the other: each request counts against the limits. */
const MAX_EMPTY = 5;
/** Time for which an item that has changed is marked, in milliseconds. */
const MARKED = 4_000;

/**
 * Returns the grid of the items that `next` returns, page by page, until it returns null; `card` makes one of an item, and `empty` the
 * content of an empty grid. Besides `nodes`, the grid has functions for items that change, by their id.
 */
export function grid({ next, card, empty, signal }) {
  const content = element("div", { className: "pages", tabIndex: -1 });
  const end = element("div", { className: "end", attributes: { role: "status" } });
  const pages = new Map();
  let [isLoading, isComplete] = [false, false];

  const nearScreen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      if (isIntersecting && isEmptied(target)) fill(target);
      // A page with the focus stays, so that the keyboard goes on from there.
      else if (!isIntersecting && !target.contains(document.activeElement)) clear(target, boundingClientRect.height);
    }
  }, { rootMargin: KEEP });
  const nearEnd = new IntersectionObserver((entries) => entries.at(-1).isIntersecting && more(), { rootMargin: LOAD });

  const isEmptied = (list) => list.style.height !== "";

  function fill(list) {
    list.replaceChildren(...pages.get(list).map(card));
    list.style.height = "";
  }

  function clear(list, height) {
    list.style.height = `${height}px`;
    list.replaceChildren();
  }

  async function more(pause) {
    if (isLoading) return;
    isLoading = true;
    const hadFocus = end.contains(document.activeElement);
    try {
      const items = await nextItems();
      if (signal.aborted) return;
      if (items === null) return finish();
      if (items.length === 0) return end.replaceChildren(goOn());
      // New ones may have been put at the beginning.
      add(items.filter(({ id }) => !find(id)));
      end.replaceChildren();
      // Reports again whether the end is near.
      nearEnd.unobserve(end);
      nearEnd.observe(end);
    } catch (failure) {
      if (!signal.aborted) end.replaceChildren(loadProblem(failure, more, pause));
    } finally {
      isLoading = false;
      if (hadFocus && !signal.aborted) keepFocus(end.querySelector("button") ?? content);
    }
  }

  /** Returns the next items. A page may have none while more remain. */
  async function nextItems() {
    let items = await next();
    for (let pages = 1; items?.length === 0 && pages < MAX_EMPTY && !signal.aborted; pages += 1) {
      end.replaceChildren(element("p", { className: "quiet" }, "Searching …"));
      items = await next();
    }
    return items;
  }

  const goOn = () => element("p", {}, "No match so far. ",
    element("button", { className: "plain more", type: "button", on: { click: () => more() } }, "Search on"));

  function add(items) {
    const list = element("ul", { className: "grid", ariaLabel: `Page ${pages.size + 1}` });
    pages.set(list, items);
    fill(list);
    content.append(list);
    nearScreen.observe(list);
    return list;
  }

  function finish() {
    nearEnd.disconnect();
    isComplete = true;
    showEmpty();
  }

  const isEmpty = () => isComplete && [...pages.values()].every((items) => items.length === 0);

  /** Shows the content of an empty grid if there are no items. */
  function showEmpty() {
    if (isComplete) end.replaceChildren(isEmpty() ? empty() : "");
  }

  /** Returns the list of the item with this id, its place there, and its card if it is in the document. */
  function find(id) {
    for (const [list, items] of pages) {
      const place = items.findIndex((item) => item.id === id);
      if (place >= 0) return { items, place, shown: isEmptied(list) ? undefined : list.children[place] };
    }
    return undefined;
  }

  /** Returns the item with this id, as it is shown. */
  function get(id) {
    const found = find(id);
    return found && found.items[found.place];
  }

  /** Shows the new state of an item, at its place or, if `isNew`, at the beginning, and marks it for a moment. */
  function put(item, isNew) {
    const found = find(item.id);
    const made = card(item);
    made.classList.add("marked");
    setTimeout(() => made.classList.remove("marked"), MARKED);
    if (found) {
      found.items[found.place] = item;
      const hadFocus = found.shown?.contains(document.activeElement);
      found.shown?.replaceWith(made);
      if (hadFocus) made.querySelector("a").focus({ preventScroll: true });
    } else if (isNew) {
      const list = pages.keys().next().value ?? add([]);
      pages.get(list).unshift(item);
      if (!isEmptied(list)) list.prepend(made);
      showEmpty();
    }
  }

  /** Removes an item that is gone. */
  function drop(id) {
    const found = find(id);
    found?.items.splice(found.place, 1);
    const hadFocus = found?.shown?.contains(document.activeElement);
    found?.shown?.remove();
    if (hadFocus) content.focus({ preventScroll: true });
    showEmpty();
  }

  const all = () => [...pages.values()].flat();

  signal.addEventListener("abort", () => {
    nearEnd.disconnect();
    nearScreen.disconnect();
  });
  nearEnd.observe(end);
  return { nodes: [content, end], put, drop, isEmpty, get, all };
}
