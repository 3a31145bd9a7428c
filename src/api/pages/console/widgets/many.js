// Many pets at once: choosing them, and an act on all of them, with its progress, what failed, and one undo for the whole.

import { json, newIdempotencyKey, pages, send, versioned } from "../api.js";
import { element, field, isolated, keepFocus } from "../dom.js";
import { announce } from "./announcement.js";
import { ask } from "./dialog.js";
import { STATUSES } from "./inventory.js";
import { REPETITIONS, patiently } from "./patience.js";
import { petCard } from "./pet_card.js";
import { tagSuggestions } from "./tag_suggestions.js";
import { patchOf, restored } from "./undo.js";

/** Maximum number of pets that are chosen, and of requests that are sent at once: the other pages of this person need some, too. */
const [MAX_CHOSEN, AT_ONCE] = [500, 4];
/** Maximum number of characters that the service accepts. */
const MAX_LENGTH = 255;

const pathOf = ({ id }) => `pet/${id}`;

/** Sets fields of a pet. Returns the changed pet, and a function that takes that back unless the pet has changed since then. */
async function setFields(pet, body) {
  const { value, etag } = await versioned("PATCH", pathOf(pet), { body });
  const before = Object.fromEntries(Object.keys(body).map((name) => [name, patchOf(name, pet[name] ?? null)]));
  return { pet: value, undo: () => versioned("PATCH", pathOf(pet), { body: before, ifMatch: etag }).then(({ value: undone }) => undone) };
}

/** Changes the tags of a pet as it is stored, like `setFields`. */
async function changeTags(pet, change, repetitions = REPETITIONS) {
  const { value: stored, etag } = await versioned("GET", pathOf(pet));
  const tags = change(stored.tags);
  if (tags.length === stored.tags.length) return { pet: stored, isSame: true };
  try {
    const { value, etag: changedTag } = await versioned("PATCH", pathOf(pet), { body: { tags }, ifMatch: etag });
    const body = { tags: stored.tags };
    return { pet: value, undo: () => versioned("PATCH", pathOf(pet), { body, ifMatch: changedTag }).then(({ value: undone }) => undone) };
  } catch (failure) {
    // Somebody else has changed it meanwhile.
    if (failure.status !== 412 || repetitions === 0) throw failure;
    return changeTags(pet, change, repetitions - 1);
  }
}

/** Deletes a pet, like `setFields`. It is restored without the pictures that the service has stored. */
async function remove(pet) {
  await send("DELETE", pathOf(pet));
  const options = { body: restored(pet), idempotencyKey: newIdempotencyKey() };
  return { undo: () => json("POST", "pet", options) };
}

/**
 * Returns the cards of pets that can be chosen, the bar with what can be done with the chosen ones, and a function that chooses none. `list`
 * returns the pets that are shown, in their order, and `query` the parameters of a list with a limit; `changed` gets the new state of a pet, and
 * `gone` the number of a deleted one.
 */
export function manyPets({ list, query, changed, gone, signal }) {
  const chosen = new Map();
  let last;
  let [isStopped, isBusy] = [false, false];
  /** Number of times that pets were chosen otherwise: what is read for an earlier choice is dropped. */
  let choice = 0;

  const count = element("h2", {});
  const text = (id, required) => element("input", { id, maxLength: MAX_LENGTH, autocomplete: "off", required, pattern: ".*\\S.*" });
  const status = element("select", { id: "many-status" }, ...STATUSES.map((it) => element("option", {}, it)));
  const [tag, category] = [text("many-tag", true), text("many-category", false)];
  const tagField = element("div", {}, field("Tag", tag), tagSuggestions(tag));
  const hasName = (name) => (it) => it.name === name;
  /** The acts by their names: the field, and a function that returns what is done with a pet. */
  const acts = {
    "Set the status": [field("Status", status), () => (pet) => setFields(pet, { status: status.value })],
    "Add a tag": [tagField, (name = tag.value.trim()) => (pet) =>
      changeTags(pet, (tags) => (tags.some(hasName(name)) ? tags : [...tags, { name }]))],
    "Remove a tag": [tagField, (name = tag.value.trim()) => (pet) => changeTags(pet, (tags) => tags.filter((it) => it.name !== name))],
    "Set the category": [field("Category, or none", category), (name = category.value.trim()) => (pet) =>
      setFields(pet, { category: name ? { id: null, name } : null })],
    Delete: [element("p", {}), () => remove],
  };
  const act = element("select", { id: "many-act" }, ...Object.keys(acts).map((name) => element("option", {}, name)));
  const value = element("div", { className: "field" });
  const showField = () => value.replaceChildren(acts[act.value][0]);
  act.addEventListener("change", showField);
  showField();
  const form = element("form", { className: "filters", ariaLabel: "What to do with the chosen pets" },
    field("What to do", act), value, element("button", {}, "Apply"));
  const choices = element("div", { className: "choices" },
    element("button", { id: "choose-all", type: "button", className: "plain", on: { click: chooseAll } }, `All that match, up to ${MAX_CHOSEN}`),
    element("button", { id: "choose-none", type: "button", className: "plain", on: { click: () => clear() } }, "None"));
  const outcome = element("div", { id: "many-outcome", tabIndex: -1 });
  const bar = element("section", { id: "many", className: "card", ariaLabel: "Chosen pets", hidden: true }, count, choices, form, outcome);

  function card(pet) {
    if (chosen.has(pet.id)) chosen.set(pet.id, pet);
    const box = element("input", {
      type: "checkbox", className: "choose", value: pet.id, checked: chosen.has(pet.id), ariaLabel: `Choose ${pet.name}`,
      on: { click: ({ shiftKey }) => choose(pet.id, box.checked, shiftKey) },
    });
    const made = petCard(pet);
    made.prepend(box);
    return made;
  }

  /** Chooses a pet or not and, with the Shift key, all between it and the one before. */
  function choose(id, isChosen, isRange) {
    if (isBusy) return show();
    choice += 1;
    const shown = list();
    const place = shown.findIndex((pet) => pet.id === id);
    const before = isRange ? shown.findIndex((pet) => pet.id === last) : -1;
    const [from, to] = before < 0 ? [place, place] : [Math.min(before, place), Math.max(before, place)];
    for (const pet of shown.slice(from, to + 1)) {
      if (!isChosen) chosen.delete(pet.id);
      else if (chosen.size < MAX_CHOSEN) chosen.set(pet.id, pet);
    }
    last = id;
    outcome.replaceChildren();
    show();
  }

  async function chooseAll() {
    choice += 1;
    const mine = choice;
    const next = pages(`pet?${query(MAX_CHOSEN)}`, signal);
    const found = [];
    try {
      while (found.length < MAX_CHOSEN && !next.isLast() && mine === choice) found.push(...await next() ?? []);
    } catch (failure) {
      if (mine === choice && !signal.aborted) outcome.replaceChildren(element("p", { className: "problem" }, failure.message));
      return;
    }
    if (mine !== choice || signal.aborted) return;
    chosen.clear();
    for (const pet of found.slice(0, MAX_CHOSEN)) chosen.set(pet.id, pet);
    outcome.replaceChildren();
    show();
    announce(count.textContent);
  }

  function clear() {
    choice += 1;
    if (isBusy) return;
    chosen.clear();
    last = undefined;
    outcome.replaceChildren();
    show();
    keepFocus(document.querySelector(".choose") ?? document.getElementById("main"));
  }

  function show() {
    for (const box of document.querySelectorAll(".choose")) box.checked = chosen.has(Number(box.value));
    count.textContent = chosen.size === 1 ? "1 pet is chosen" : `${chosen.size} pets are chosen`;
    bar.hidden = chosen.size === 0 && !outcome.hasChildNodes();
    form.hidden = choices.hidden = chosen.size === 0;
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const targets = [...chosen.values()];
    const pending = targets.filter((pet) => pet.status === "pending").length;
    const question = [element("p", {}, "They are deleted with their pictures. You can restore the pets, but not the pictures."),
      pending > 0 && element("p", { className: "problem" }, `Pending: ${pending}. Their open orders stay, and can no longer be delivered.`)].filter(Boolean);
    if (act.value === "Delete" && !(await ask(`Delete ${targets.length} pets?`, question, { Delete: true, Keep: false }))) return;
    const [, make] = acts[act.value];
    const done = await forEach(targets, make());
    if (signal.aborted) return;
    const undos = done.filter(({ undo }) => undo);
    tell(act.value === "Delete" ? "deleted" : "changed", done.filter(({ isSame }) => !isSame).length, undos.length > 0 && (() => undoAll(undos)));
  });

  async function undoAll(undos) {
    const undone = await forEach(undos, async ({ undo }) => ({ pet: await undo() }));
    const left = undos.filter(({ id }) => undone.every((it) => it.id !== id));
    if (!signal.aborted) tell("as before", undone.length, left.length > 0 && (() => undoAll(left)));
  }

  /** Says how many pets were changed, above what failed. */
  function tell(what, number, undo) {
    const sentence = number === 1 ? `1 pet is ${what}.` : `${number} pets are ${what}.`;
    outcome.prepend(element("p", {}, sentence, " ",
      undo && element("button", { id: "undo-all", type: "button", className: "plain", on: { click: undo } }, "Undo")));
    show();
    announce(sentence);
    keepFocus(outcome.querySelector("button") ?? outcome);
  }

  /** Does something with each of these, some at once, and shows the progress. Returns the results; what failed is shown with its reason. */
  async function forEach(targets, work) {
    const [bars, note] = [element("progress", { max: targets.length, value: 0, ariaLabel: "Progress" }), element("span", {})];
    const stop = element("button", { type: "button", className: "plain", on: { click: () => { isStopped = true; } } }, "Stop");
    outcome.replaceChildren(element("p", { className: "choices" }, bars, note, stop));
    [isStopped, isBusy] = [false, true];
    form.inert = choices.inert = true;
    stop.focus({ preventScroll: true });
    const [queue, results, failures] = [[...targets], [], []];
    const isOver = () => isStopped || signal.aborted;
    const next = async () => {
      while (queue.length > 0 && !isOver()) {
        const target = queue.shift();
        try {
          const result = await patiently(() => work(target), note, isOver);
          results.push({ ...result, id: target.id ?? target.pet?.id, name: target.name ?? target.pet?.name });
          if (result.pet) changed(result.pet);
          else if (target.id) gone(target.id);
        } catch (failure) {
          failures.push(element("li", {}, `${isolated(target.name ?? target.pet?.name)}: ${failure.message}`));
        }
        bars.value += 1;
        note.textContent = `${bars.value} of ${targets.length}`;
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, next));
    isBusy = form.inert = choices.inert = false;
    chosen.clear();
    outcome.replaceChildren(...[
      queue.length > 0 && element("p", {}, `Stopped: ${queue.length} are left as they are.`),
      failures.length > 0 && element("ul", { className: "problem" }, ...failures),
    ].filter(Boolean));
    return results;
  }

  return { bar, card, clear };
}
