// What a change has changed, in one line for people.

import { formatTime, isolated } from "../dom.js";

/** Names of facts, where people call them otherwise. */
const NAMES = { photoUrls: "pictures", shipDate: "ships", expiresAt: "expires" };
/** Facts whose value is a list, and not a pair of an old value and a new one. */
const LISTS = ["changed", "scopes"];
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;
const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;

/** Returns the facts of a change: `name Rex → Max, tags + small`. */
export function changeText({ action, data = {} }) {
  const { was, order, ...facts } = data;
  return [
    was && `was ${safe(was.name)}, ${was.status}`,
    order && "with an open order",
    ...Object.entries(facts).map(([name, value]) => factText(NAMES[name] ?? name, name, value, action === "created")),
  ].filter(Boolean).join(", ");
}

/** Returns a fact, or nothing for a list that a new resource does not have. */
function factText(label, name, value, isNew) {
  if (name === "ids") return `${label} ${value.join(" – ")}`;
  if (name === "changed") return value.map((it) => NAMES[it] ?? it).join(", ");
  const isPair = Array.isArray(value) && value.length === 2 && (!LISTS.includes(name) || Array.isArray(value[1]));
  if (!isPair) return `${label} ${text(value)}`;
  const [before, after] = value;
  if (isNew && before === null) return after?.length !== 0 && `${label} ${name === "photoUrls" ? after.length : text(after)}`;
  if (name === "photoUrls") return `${label} ${pictureText(before, after)}`;
  if (Array.isArray(before) && Array.isArray(after)) return `${label} ${listText(before.map(text), after.map(text))}`;
  return `${label} ${text(before)} → ${text(after)}`;
}

/** Returns what was added to a list, and what was removed. */
function listText(before, after) {
  const added = after.filter((it) => !before.includes(it)).map((it) => `+ ${it}`);
  const removed = before.filter((it) => !after.includes(it)).map((it) => `− ${it}`);
  return [...added, ...removed].join(" ") || "in another order";
}

/** Returns how many pictures there are more and less. */
export function pictureText(before, after) {
  const added = after.filter((url) => !before.includes(url)).length;
  const removed = before.filter((url) => !after.includes(url)).length;
  return [added > 0 && `${added} added`, removed > 0 && `${removed} removed`].filter(Boolean).join(", ") || "in another order";
}

/** Returns a text that does not change the direction of the others. */
const safe = (value) => (RIGHT_TO_LEFT.test(value) ? isolated(value) : value);

/** Returns a value: a time in the zone of the browser, an object by its name. */
function text(value) {
  if (value === null) return "–";
  if (Array.isArray(value)) return value.map(text).join(", ") || "–";
  if (typeof value === "object") return safe(value.name ?? String(value.id ?? "–"));
  return TIME.test(value) ? formatTime(value) : safe(String(value));
}
