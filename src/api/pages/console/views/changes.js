// The record of changes, the newest first, with filters, which are in the URL.

import { scopes } from "../api.js";
import { element, field } from "../dom.js";
import { changeTable } from "../widgets/change_table.js";
import { foldButton } from "../widgets/fold.js";
import { callerNamed } from "../widgets/people.js";
import { restoreButton } from "../widgets/undo.js";

export const KINDS = ["pet", "image", "order", "user", "caller", "key", "client", "session", "webhook", "import", "restore"];
const FILTERS = ["kind", "resource", "actor"];

export async function changes({ parameters, signal, done, report }) {
  const value = (name) => parameters.get(name) ?? "";
  const kinds = element("select", { id: "kind" }, element("option", { value: "" }, "all"),
    ...KINDS.map((it) => element("option", { selected: it === value("kind") }, it)));
  // A number is that of one kind.
  const number = value("kind") && value("resource");
  const resource = element("input", { id: "resource", type: "search", maxLength: 64, value: number });
  const actor = element("input", { id: "actor", type: "search", maxLength: 100, value: value("actor"), autocomplete: "off" });
  // Without this scope, the service finds few changes by their actor.
  const granted = await scopes();
  const isAdmin = granted.includes("admin");
  const act = (change) => granted.includes("write:pets")
    && restoreButton(change, report, () => { location.hash = `#/pets/${change.resource}`; });
  const requireKind = () => { kinds.required = resource.value.trim() !== ""; };
  const submit = (event) => {
    event.preventDefault();
    location.hash = `#/changes?${given([kinds.value, resource.value, actor.value])}`;
  };
  requireKind();
  // The record has the name of the account in place of the username.
  const caller = isAdmin && value("actor") && await callerNamed(value("actor"));
  const by = caller ? caller.name : value("actor");
  return [
    element("h1", {}, "Changes"),
    element("form", { className: "filters", ariaLabel: "Filters", on: { input: requireKind, submit } },
      field("Kind", kinds), foldButton(parameters.size > 0), field("Number, of one kind", resource), isAdmin && field("By", actor),
      element("button", { className: "plain" }, "Show")),
    await changeTable(given([value("kind"), number, by]), { signal, missed: done, act }),
  ];
}

/** Returns the filters that have a value, as the parameters of a request. */
function given(values) {
  return new URLSearchParams(FILTERS.map((name, place) => [name, values[place].trim()]).filter(([, value]) => value));
}
