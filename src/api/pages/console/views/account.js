// The account of this tab: its plan, how much of its limits is left, and its requests by day.

import { json } from "../api.js";
import { element } from "../dom.js";
import { days } from "../widgets/days.js";
import { limit } from "../widgets/limit.js";

export async function account({ done }) {
  const content = element("div", { id: "limits" }, ...limits(await json("GET", "limits")));
  const refresh = element("button", { className: "plain", on: { click: done } }, "Refresh");
  return [element("div", { className: "title" }, element("h1", {}, "Account"), refresh), content];
}

function limits({ plan, minute, day, days: history }) {
  return [
    element("section", { className: "card", attributes: { "aria-label": "Limits" } },
      element("p", {}, "Plan: ", element("strong", {}, plan)),
      minute ? limit("this minute", minute) : null,
      day ? limit("today (UTC)", day) : null,
      !minute && !day && element("p", {}, "Requests are not limited.")),
    element("section", { className: "card", attributes: { "aria-labelledby": "days-title" } },
      element("h2", { id: "days-title" }, "Requests by day"), days(history)),
  ];
}
