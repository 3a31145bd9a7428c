"use strict";

const status = document.getElementById("status");
const form = document.getElementById("ask");
const limits = document.getElementById("limits");

document.getElementById("example").textContent =
  `curl -H 'api_key: YOUR_KEY' '${location.origin}/api/v3/pet/findByStatus?status=available'`;

async function showStatus() {
  let ready = false;
  try {
    ready = (await fetch("readyz", { cache: "no-store" })).ok;
  } catch {
    // Nobody answers: not ready.
  }
  status.className = ready ? "ready" : "unready";
  status.querySelector(".text").textContent = ready ? "Ready" : "Not ready";
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function duration(seconds) {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.ceil(seconds / 60)} min`;
  return `${Math.ceil(seconds / 3600)} h`;
}

function limit(name, { limit, remaining, reset }) {
  const made = element("div", "limit");
  const figures = element("div", "figures");
  const number = new Intl.NumberFormat();
  figures.append(
    element("span", "", `${number.format(remaining)} of ${number.format(limit)} requests left ${name}`),
    element("span", "reset", remaining < limit ? `more in ${duration(reset)}` : ""),
  );
  const meter = element("meter");
  Object.assign(meter, { min: 0, max: limit, low: limit * 0.2, high: limit * 0.5, optimum: limit, value: remaining });
  meter.setAttribute("aria-label", `Requests left ${name}`);
  made.append(figures, meter);
  return made;
}

async function showLimits() {
  let answer, body;
  try {
    answer = await fetch("api/v3/limits", { headers: { api_key: form.elements.key.value.trim() }, cache: "no-store" });
    body = await answer.json();
  } catch {
    return limits.replaceChildren(element("p", "problem", "The server did not answer. Try again."));
  }
  if (!answer.ok) {
    const wait = answer.headers.get("Retry-After");
    const more = wait ? ` More in ${duration(Number(wait))}.` : "";
    return limits.replaceChildren(element("p", "problem", `${body.detail ?? body.title}${more}`));
  }
  const shown = [element("p", "", `Plan: ${body.plan}`)];
  if (body.minute) shown.push(limit("this minute", body.minute));
  if (body.day) shown.push(limit("today (UTC)", body.day));
  if (!body.minute && !body.day) shown.push(element("p", "", "No limits."));
  limits.replaceChildren(...shown);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  showLimits();
});
showStatus();
setInterval(showStatus, 10_000);
