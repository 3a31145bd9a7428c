// Login sessions of users.

import { pages, send } from "../api.js";
import { element, formatTime, shortTime } from "../dom.js";
import { people } from "../widgets/people.js";
import { rows } from "../widgets/rows.js";

const PAGE = 50;

export async function sessions({ signal, report }) {
  const by = await people(signal);
  const end = (session, change) =>
    report(() => send("DELETE", `admin/sessions/${session.id}`), () => change({ ...session, revokedAt: Date.now() }));
  return [element("h1", {}, "Sessions"), await rows({
    name: "Sessions",
    next: pages(`admin/sessions?limit=${PAGE}`),
    empty: "No user is logged in.",
    columns: [
      ["Session", ({ id }) => String(id)],
      ["Caller", ({ caller, callerId }) => element("a", { href: `#/callers/${callerId}` }, by(caller))],
      ["Since", ({ createdAt }) => shortTime(createdAt)],
      ["Until", ({ revokedAt, expiresAt }) => (revokedAt ? `ended ${formatTime(revokedAt)}` : formatTime(expiresAt))],
      ["", (session, change) => !session.revokedAt
        && element("button", { className: "plain", ariaLabel: `End session ${session.id}`, on: { click: () => end(session, change) } }, "End")],
    ],
  })];
}
