// Takes back the newest change of a pet, and restores a deleted one.

import { json, newIdempotencyKey, send } from "../api.js";
import { element, isolated } from "../dom.js";
import { announce } from "./announcement.js";

/** Returns true for a URL of an image that the service has stored for this pet. */
const isStored = (url, id) => url.includes(`/pet/${id}/images/`);

/**
 * Returns the button that takes a change of a pet back, if that is possible. The pet must have no newer change: otherwise the service
 * refuses it. An upload or a deletion of an image cannot be taken back.
 */
export function undoButton({ action, resource, version, data = {} }, report, done) {
  const differs = ([before, after]) => [...before, ...after].some((url) => isStored(url, resource) && before.includes(url) !== after.includes(url));
  if (action !== "changed" || data.changed || Object.keys(data).length === 0 || (data.photoUrls && differs(data.photoUrls))) return null;
  const body = Object.fromEntries(Object.entries(data).map(([field, [before]]) => [field, patchOf(field, before)]));
  const undo = () => report(async () => {
    await send("PATCH", `pet/${resource}`, { body, ifMatch: `"${version}"` });
    announce("The change is undone.");
  }, done);
  return element("button", { className: "plain undo", type: "button", on: { click: undo } }, "Undo");
}

/** Returns the value of a field in a merge patch, which merges the members of a category. */
export function patchOf(field, value) {
  if (field !== "category" || value === null) return value;
  return { id: value.id ?? null, name: value.name ?? null };
}

/** Returns a deleted pet as it is added again: without the pictures that were deleted with it. */
export const restored = (pet) => ({ ...pet, photoUrls: pet.photoUrls.filter((url) => !isStored(url, pet.id)) });

/** Returns the button that adds a deleted pet again. `done` shows the pet. */
export function restoreButton({ action, data = {} }, report, done) {
  if (action !== "deleted" || !data.was) return null;
  const body = restored(data.was);
  const lost = data.was.photoUrls.length - body.photoUrls.length;
  const restore = () => {
    const idempotencyKey = newIdempotencyKey();
    report(async () => {
      const { name } = await json("POST", "pet", { body, idempotencyKey });
      const pictures = lost === 1 ? "Its picture is lost." : `Its ${lost} pictures are lost.`;
      announce(`${isolated(name)} is restored. ${lost > 0 ? pictures : ""}`, true);
    }, done);
  };
  return element("button", { className: "plain restore", type: "button", on: { click: restore } }, "Restore");
}
