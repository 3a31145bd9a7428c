// The frame: which view is shown, its place in the fragment of the URL, and the state of the service.

import { credential, keep, keepOfOtherTab, readiness, scopes, signOut } from "./api.js";
import { element, keepFocus, nameTab, wait } from "./dom.js";
import { account } from "./views/account.js";
import { caller } from "./views/caller.js";
import { callers } from "./views/callers.js";
import { changes } from "./views/changes.js";
import { orders } from "./views/orders.js";
import { pet } from "./views/pet.js";
import { pets } from "./views/pets.js";
import { sessions } from "./views/sessions.js";
import { signIn } from "./views/sign_in.js";
import { webhook } from "./views/webhook.js";
import { webhooks } from "./views/webhooks.js";
import { announce, leaveAnnouncement } from "./widgets/announcement.js";
import { ask } from "./widgets/dialog.js";
import { hasEdits, mayLoseEdits, stateOf, watchEdits } from "./widgets/edits.js";
import { loadProblem, problem } from "./widgets/problem.js";

/**
 * Views by the first part of the fragment: of a list, and of one resource, with the scope that they need. Each returns its content.
 */
const VIEWS = {
  pets: { title: "Pets", show: pets, one: "Pet", showOne: pet, scope: "read:pets" },
  orders: { title: "Orders", show: orders, scope: "read:orders" },
  callers: { title: "Callers", show: callers, one: "Caller", showOne: caller, scope: "admin" },
  sessions: { title: "Sessions", show: sessions, scope: "admin" },
  webhooks: { title: "Webhooks", show: webhooks, one: "Webhook", showOne: webhook, scope: "admin" },
  changes: { title: "Changes", show: changes, scope: "read:changes" },
  account: { title: "Account", show: account },
};
const FIRST = "pets";
/** View of an unknown place. */
const MISSING = {
  title: "There is no such page",
  show: () => [element("h1", {}, MISSING.title), element("p", {}, element("a", { href: `#/${FIRST}` }, VIEWS[FIRST].title))],
};
// In milliseconds.
const READINESS_EACH = 10_000;
/** Time in which a list is loaded up to the place that the person returns to. */
const RETURN = 5_000;

const main = document.getElementById("main");
const views = document.getElementById("views");
const signOutButton = document.getElementById("sign-out");
const lookButton = document.getElementById("look");
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
let shown = new AbortController();
/** Fragment of the view that is shown. */
let shownHash = location.hash;
/** Number of the entry of the history that is shown, and where the others were left: their fragments, and how far they were scrolled. */
let entry = 0;
let positions = new Map();
/** True while the person is asked about edits before another entry is shown. */
let isAsking = false;

/** Returns the number of the current entry of the history, which is in its state. A new one follows the one that is shown. */
function currentEntry() {
  if (history.state?.entry === undefined) {
    history.replaceState({ entry: entry + 1 }, "");
    positions.delete(entry + 1);
  }
  return history.state.entry;
}

/** Returns the place in the fragment, `#/pets/7?…`: the name of a view, the view, the identifier of a resource, and parameters. */
function place() {
  const [path, query] = location.hash.slice(2).split("?");
  const [first, id] = path.split("/");
  const name = first || FIRST;
  const isKnown = Object.hasOwn(VIEWS, name) && (!id || VIEWS[name].showOne);
  return { name, found: isKnown ? VIEWS[name] : MISSING, id, parameters: new URLSearchParams(query) };
}

/**
 * Shows the view of the fragment, or the form to sign in with. The view gets its place, a signal that is aborted when another one is
 * shown, `done` to show it again, and `report` to make changes with. If it cannot be loaded, that is tried again after a `pause`.
 */
async function show(notice = "", pause = undefined) {
  shown.abort();
  shown = new AbortController();
  const focusBefore = document.activeElement;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  [shownHash, entry] = [location.hash, currentEntry()];
  const { signal } = shown;
  const isSignedIn = credential() !== null;
  const { name, found, id, parameters } = place();
  const { title, show: list, one, showOne } = isSignedIn ? found : { title: "Sign in", show: signIn };
  const view = (isSignedIn && id && showOne) || list;
  nameTab(title);
  views.hidden = signOutButton.hidden = !isSignedIn;
  for (const link of views.children) link.ariaCurrent = link.hash === `#/${name}` ? "page" : null;
  const done = () => show();
  // The former view can be used no longer.
  main.inert = true;
  main.ariaBusy = true;
  const isOutside = !main.contains(focusBefore) && focusBefore !== document.body;
  let content;
  try {
    if (isSignedIn) await showLinks();
    content = await view({ signal, notice, id, parameters, done, report: reporter(signal, done) });
  } catch (failure) {
    const back = (text) => element("p", {}, element("a", { href: `#/${name}` }, text));
    content = [
      id && back(`← ${title}`), element("h1", {}, id ? `${one} ${id}` : title),
      loadProblem(failure, (next) => show("", next), pause), !id && parameters.size > 0 && back("Without filters"),
    ];
  }
  if (signal.aborted) return;
  main.replaceChildren(...content.filter(Boolean));
  nameTab(main.querySelector("h1")?.textContent ?? title);
  showCurrentLink();
  main.inert = false;
  main.ariaBusy = null;
  // What is loaded again by itself leaves the focus where it is.
  if (pause && isOutside) return;
  main.focus({ preventScroll: true });
}

/** Scrolls the link to the view into the row of links, which has no room for all of them on a phone. */
function showCurrentLink() {
  const link = views.querySelector("[aria-current]");
  if (link) views.scrollLeft = link.offsetLeft - views.offsetLeft - (views.clientWidth - link.offsetWidth) / 2;
}

/** Shows the links to the views that the caller may use. */
async function showLinks() {
  const granted = await scopes();
  for (const link of views.children) {
    const { scope } = VIEWS[link.hash.slice(2)];
    link.hidden = scope !== undefined && !granted.includes(scope);
  }
}

/**
 * Returns a function that makes a change and then calls `done` with its result. If it fails, it says why above the view. The view
 * is inert while the change is made: people click twice. A change that saves a `form` is announced, unless it returns false; before
 * others that end in `again`, the person is asked about edits, which would be lost. A change that returns null is given up.
 */
function reporter(signal, again) {
  return async function report(change, done, form) {
    if (main.inert) return;
    const focused = document.activeElement;
    const sent = form && stateOf(form);
    main.inert = true;
    if (done === again && !(await mayLoseEdits(form))) {
      if (signal.aborted) return;
      main.inert = false;
      return focusAgain(focused);
    }
    announce("");
    for (const old of main.querySelectorAll(":scope > .failure")) old.remove();
    try {
      const result = await change();
      if (signal.aborted) return;
      main.inert = false;
      if (result === null) return focusAgain(focused);
      const isSaved = form && result !== false;
      if (isSaved) watchEdits(form);
      await done(result);
      if (isSaved) announce("Saved.");
    } catch (failure) {
      if (signal.aborted) return;
      main.inert = false;
      // What was edited since then is sent, too.
      const shown = problem(failure, () => (form && stateOf(form) !== sent ? form.requestSubmit() : report(change, done, form)));
      main.prepend(shown);
      shown.scrollIntoView({ block: "nearest" });
    }
    // It may have been made again.
    if (!focused.isConnected && focused.id) document.getElementById(focused.id)?.focus({ preventScroll: true });
    focusAgain(focused);
  };
}

/** Gives the focus back to an element that lost it while it was inert, or to the view if the element is gone. */
function focusAgain(focused) {
  keepFocus(focused);
  keepFocus(main);
}

/** Shows the view of the fragment, unless the person keeps edits: then the history goes back to their entry. */
async function showPlace() {
  if (isAsking || currentEntry() === entry) return;
  isAsking = true;
  const canLeave = await mayLoseEdits();
  isAsking = false;
  // The view may have been shown meanwhile, or the person gone back to it.
  const reached = currentEntry();
  if (reached === entry) return;
  if (!canLeave) return history.go(entry - reached);
  const left = shownHash;
  positions.set(entry, { hash: left, position: scrollY });
  leaveAnnouncement();
  scrollTo(0, 0);
  const showing = show();
  const { signal } = shown;
  await showing;
  // A link may lead to a field of a form.
  if (!signal.aborted) main.querySelector("[data-focus]")?.focus();
  if (positions.has(entry) && !signal.aborted) returnTo(positions.get(entry).position, left, signal);
}

/** Goes back to the list that a link leads to, if it was shown before: with its filters, and at its place. */
function goBack(event) {
  const link = event.target.closest("a.back");
  const list = ({ hash }) => hash.split("?")[0];
  const before = link && [...positions].filter(([number, place]) => number < entry && list(place) === list(link)).map(([number]) => number);
  if (!before?.length || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.go(Math.max(...before) - entry);
}

/** Scrolls to where the person was before, and gives the focus to the link to the place `left`, unless the person goes on meanwhile. */
async function returnTo(position, left, signal) {
  const [until, ownAct] = [Date.now() + RETURN, new AbortController()];
  const over = AbortSignal.any([signal, ownAct.signal]);
  for (const event of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(event, () => ownAct.abort(), { signal: over });
  const linkToLeft = () => [...main.querySelectorAll("a")].find(({ hash }) => hash === left);
  while (!over.aborted && Date.now() < until) {
    scrollTo(0, position);
    const isThere = Math.abs(scrollY - position) < 1;
    if (isThere && linkToLeft()) break;
    // A grid loads its next page by itself.
    if (!isThere) main.querySelector(".more:not([hidden])")?.click();
    await wait(20);
  }
  const link = linkToLeft();
  if (!over.aborted && document.activeElement === main) link?.focus({ preventScroll: true });
  ownAct.abort();
}

async function showReadiness() {
  if (document.hidden) return;
  const [className, text] = await readiness();
  const status = document.getElementById("status");
  // Setting the same text again would make screen readers repeat it.
  if (status.textContent === text) return;
  status.className = className;
  status.textContent = status.title = text;
}

/** Shows the first view: after a reload, where it was; in a new tab, with the credential of another one. */
async function begin() {
  const { positions: left, position } = history.state ?? {};
  if (left) positions = left;
  if (!credential() && !history.state) await keepOfOtherTab();
  showLook();
  await show();
  if (position) returnTo(position, "", shown.signal);
}

/** Shows the page light or dark: as the system is, until the person chooses. The choice is kept as long as the credential. */
function showLook(chosen = credential()?.look) {
  document.documentElement.style.colorScheme = chosen ?? "";
  const isDark = chosen ? chosen === "dark" : darkSystem.matches;
  lookButton.textContent = isDark ? "Light" : "Dark";
  lookButton.value = isDark ? "light" : "dark";
}

views.append(...Object.entries(VIEWS).map(([name, { title }]) => element("a", { href: `#/${name}` }, title)));
signOutButton.addEventListener("click", async () => {
  if (!(await mayLoseEdits())) return;
  signOut();
  show("You are signed out.");
});
lookButton.addEventListener("click", () => {
  if (credential()) keep({ ...credential(), look: lookButton.value });
  showLook(lookButton.value);
});
darkSystem.addEventListener("change", () => showLook());
// The fragment is the place of a view.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
// Otherwise, the browser would open a file that is dropped beside its place.
for (const event of ["dragover", "drop"]) {
  addEventListener(event, (dragged) => {
    if (!dragged.dataTransfer.types.includes("Files")) return;
    dragged.preventDefault();
    dragged.dataTransfer.dropEffect = "none";
  });
}
history.scrollRestoration = "manual";
addEventListener("hashchange", showPlace);
addEventListener("click", goBack);
// Two entries of the history may have the same fragment.
addEventListener("popstate", showPlace);
addEventListener("beforeunload", (event) => {
  // At the end of the page, it is too late.
  history.replaceState({ entry, positions, position: scrollY }, "");
  if (hasEdits()) event.preventDefault();
});
addEventListener("signed-out", async ({ detail: reason }) => {
  const question = [element("p", {}, `${reason} What is not saved is lost when you sign in again: copy it first.`)];
  if (hasEdits() && !(await ask("You are signed out", question, { "Sign in again": true, "Back to the form": false }))) return;
  show(`${reason} Sign in again.`);
});
document.addEventListener("visibilitychange", showReadiness);
addEventListener("outage", showReadiness);
setInterval(showReadiness, READINESS_EACH);
showReadiness();
begin();
