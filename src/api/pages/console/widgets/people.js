// Who did something: people have names, whatever the service calls their accounts.

import { json, scopes } from "../api.js";
import { element, nameOf } from "../dom.js";
import { lookup } from "./lookup.js";

/** Beginning of the name of the caller of a user's account. */
const ACCOUNT = "user:";

/** Returns a function that shows the name of a caller, and that of an account as its username, once that is there. */
export async function people(signal) {
  const isAdmin = (await scopes()).includes("admin");
  const find = lookup(async (names) => {
    const callers = await json("GET", `admin/callers?${new URLSearchParams(names.map((name) => ["name", name]))}`, { signal });
    return new Map(callers.map((caller) => [caller.name, caller]));
  }, signal);
  return (name) => {
    const shown = element("span", {}, nameOf(name ?? "–"));
    if (isAdmin && name?.startsWith(ACCOUNT)) {
      find(name).then((caller) => caller?.username && shown.replaceChildren(nameOf(caller.username)), () => {});
    }
    return shown;
  };
}

/** Returns the caller with this name or, without one, with this username in any case; undefined if there is none. */
export async function callerNamed(name) {
  const callers = await json("GET", `admin/callers?${new URLSearchParams({ name })}`);
  return callers.find((it) => it.name === name) ?? callers.find((it) => it.username?.toLowerCase() === name.toLowerCase());
}
