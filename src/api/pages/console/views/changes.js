// The record of changes, with filters, which are in the URL.

import { changePages } from "../api.js";
import { element, field } from "../dom.js";
import { changeTable } from "../widgets/change_table.js";

export const KINDS = ["pet", "image", "order", "user", "caller", "key", "client", "session", "webhook", "import", "restore"];

export async function changes({ parameters }) {
  const [kind, resource] = [parameters.get("kind") ?? "", parameters.get("resource") ?? ""];
  const kinds = element("select", { id: "kind" }, element("option", { value: "" }, "all"),
    ...KINDS.map((it) => element("option", { selected: it === kind }, it)));
  const number = element("input", { id: "resource", type: "search", maxLength: 64, value: resource });
  const submit = (event) => {
    event.preventDefault();
    const filled = [["kind", kinds.value], ["resource", kinds.value && number.value]].filter(([, value]) => value);
    location.hash = `#/changes?${new URLSearchParams(filled)}`;
  };
  return [
    element("h1", {}, "Changes"),
    element("form", { className: "filters", ariaLabel: "Filters", on: { submit } },
      field("Kind", kinds), field("Number, of one kind", number), element("button", { className: "plain" }, "Show")),
    await changeTable(changePages({ ...(kind && { kind }), ...(kind && resource && { resource }) })),
  ];
}
