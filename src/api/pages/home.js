"use strict";

const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en-GB");

byId("base").textContent = new URL("api/v3", location);

// ---- Readiness ----

async function readiness() {
  try {
    const answer = await fetch("readyz", { cache: "no-store", signal: AbortSignal.timeout(5_000) });
    if (answer.ok) return ["ready", "Ready"];
    const problem = await answer.json();
    return ["unready", `Not ready: ${problem.detail}`];
  } catch {
    return ["unready", "No response"];
  }
}

async function showStatus() {
  if (document.hidden) return;
  const [className, text] = await readiness();
  const status = byId("status");
  // Setting the same text again would make screen readers repeat it.
  if (status.textContent === text) return;
  status.className = className;
  status.textContent = text;
}

// ---- The caller's limits ----

function element(name, className, ...content) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...content);
  return made;
}

function duration(seconds) {
  if (seconds <= 90) return `${seconds} s`;
  const minutes = Math.ceil(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function limit(name, { limit, remaining, reset }) {
  const left = `${number.format(remaining)} of ${number.format(limit)} requests left ${name}`;
  const more = remaining < limit ? `more in ${duration(reset)}` : "";
  const meter = element("meter", remaining < limit * 0.2 ? "low" : "");
  Object.assign(meter, { max: limit, value: remaining, ariaLabel: `Requests left ${name}` });
  return element("div", "limit",
    element("div", "figures", element("span", remaining ? "" : "spent", left), element("span", "quiet", more)), meter);
}

function limits({ plan, minute, day }) {
  const shown = [element("p", "", "Plan: ", element("strong", "", plan))];
  if (minute) shown.push(limit("this minute", minute));
  if (day) shown.push(limit("today (UTC)", day));
  if (!minute && !day) shown.push(element("p", "", "Requests are not limited."));
  return shown;
}

function problem(text) {
  return [element("p", "problem", text)];
}

async function ask(key) {
  // With a character that no header can hold, fetch would fail without a request.
  if (!/^[\x21-\x7e]+$/.test(key)) return problem("This is not an API key: it contains invalid characters.");
  let answer, body;
  try {
    answer = await fetch("api/v3/limits", {
      headers: { api_key: key }, cache: "no-store", signal: AbortSignal.timeout(15_000),
    });
    body = await answer.json();
  } catch {
    return problem("The server did not respond. Try again.");
  }
  if (answer.ok) return limits(body);
  if (answer.status === 401) return problem("This key is not valid: it is mistyped, expired or revoked.");
  const detail = String(body.detail);
  return problem(`${detail.charAt(0).toUpperCase()}${detail.slice(1)}.`);
}

let latest;
byId("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const asking = (latest = ask(byId("key").value.trim()));
  const shown = await asking;
  if (asking === latest) byId("limits").replaceChildren(...shown);
});

// The key must not reappear when the page is restored from the tab's history.
addEventListener("pagehide", () => byId("ask").reset());
document.addEventListener("visibilitychange", showStatus);
setInterval(showStatus, 10_000);
showStatus();
