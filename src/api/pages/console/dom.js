// Elements, texts and times. Data becomes text nodes and properties only, never markup.

/**
 * Creates an element.
 *
 * `properties` are those of the element; `on` has its listeners by event, `attributes` what is no property. Children that are
 * undefined, null or false are left out.
 */
export function element(name, properties = {}, ...children) {
  const { on = {}, attributes = {}, ...rest } = properties;
  const made = Object.assign(document.createElement(name), rest);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  made.append(...children.filter((child) => ![undefined, null, false].includes(child)));
  return made;
}

/** Creates an element of SVG, which has attributes only. */
export function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

/** Returns a labelled field of a form; the input has an id. */
export function field(name, input) {
  return element("p", { className: "field" }, element("label", { htmlFor: input.id }, name), input);
}

/** Returns a text that breaks anywhere, also where it has no blanks. */
export const long = (text) => element("span", { className: "long" }, text);

/** Returns a name, which is cut where it is too long; its title is the whole name. */
export const nameOf = (name) => element("span", { className: "name", title: name }, name);

/** Returns a name for a sentence, in which it changes the direction of no other text. */
export const isolated = (name) => `\u2068${name}\u2069`;

/** Names the tab after what it shows. */
export function nameTab(name) {
  document.title = `${name} – Pet inventory`;
}

/** Gives the focus to an element if its own one is gone: the keyboard goes on from there. */
export function keepFocus(target) {
  if (document.activeElement === document.body) target.focus({ preventScroll: true });
}

const numbers = new Intl.NumberFormat("en-GB");

/** Formats a number with separators. */
export const formatNumber = (number) => numbers.format(number);

// In the language of the browser, as its fields are.
const times = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });

/** Formats a time in the zone of the browser. */
export const formatTime = (time) => times.format(new Date(time));

const exactTimes = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Formats a time with its seconds. */
export const formatExactTime = (time) => exactTimes.format(new Date(time));

/** Returns a time of a list, in which that of today needs no date. Its title is the whole time. */
export function shortTime(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return element("time", { dateTime: date.toISOString(), title: formatExactTime(date) }, (isToday ? clock : times).format(date));
}

/** Waits for some milliseconds. */
export const wait = (time) => new Promise((resolve) => { setTimeout(resolve, time); });

/** Formats a number of bytes: 10 MB is 10 MiB, as people write the sizes of files. */
export function formatSize(bytes) {
  const kilobytes = bytes / 1_024;
  return kilobytes < 1_024 ? `${numbers.format(Math.round(kilobytes))} kB` : `${numbers.format(Math.round(kilobytes / 102.4) / 10)} MB`;
}

/** Formats a duration in seconds. */
export function formatDuration(seconds) {
  if (seconds <= 90) return `${seconds} s`;
  const minutes = Math.ceil(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
