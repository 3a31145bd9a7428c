// The API: sends requests with the credential of this tab, and turns every failure into one that a person can act on.

import { wait } from "./dom.js";
import { message } from "./wording.js";

const BASE = new URL("api/v3/", document.baseURI);
/** Address of the API, as people write it. */
export const ADDRESS = BASE.href.replace(/\/$/, "");
const CREDENTIAL = "credential";
/** Tabs of this browser give their credential to new ones, and sign out together. No storage holds it longer than they are open. */
const tabs = new BroadcastChannel(CREDENTIAL);
const NO_RESPONSE = "The server did not respond. Check the network, and try again.";
/** Number of changes in a page, and maximum number of responses that are read for it. */
const [CHANGES, MAX_RESPONSES] = [50, 10];
// In milliseconds.
const TIMEOUT = 15_000;
/** Time in which another tab answers. */
const ANSWER = 200;
/** Time after which a stream of changes is opened again, which doubles up to the longest one. */
const [SHORTEST_PAUSE, LONGEST_PAUSE] = [1_000, 60_000];
/** Time without an event after which a stream is dead: the service sends one every 15 s. */
const SILENCE = 30_000;

let known = {};
/** Number of requests without a response. */
let waiting = 0;

/** Failure of a request: what to tell the person, the status, 0 without a response, and the seconds after which to retry. */
export class Failure extends Error {
  constructor(message, status = 0, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Returns the credential of this tab, `{ header, value }`, or null. It is gone when the tab is closed. */
export function credential() {
  return JSON.parse(sessionStorage.getItem(CREDENTIAL));
}

/** Returns the credential of an API key. Fails if no header can hold it: fetch would fail without a request. */
export function keyCredential(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) throw new Failure("This is not an API key: it contains invalid characters.");
  return { header: "api_key", value: key };
}

/** Keeps a credential for this tab, or forgets it if it is null. */
export function keep(credential) {
  if (credential) sessionStorage.setItem(CREDENTIAL, JSON.stringify(credential));
  else sessionStorage.removeItem(CREDENTIAL);
}

tabs.addEventListener("message", ({ data: { wanted, ended } }) => {
  const current = credential();
  if (wanted && current) tabs.postMessage({ given: current });
  if (ended && current?.value === ended) end("You have signed out in another tab.");
});

/** Takes the credential of another tab, if one is signed in. */
export async function keepOfOtherTab() {
  const answered = new Promise((resolve) => {
    tabs.addEventListener("message", ({ data: { given } }) => given && resolve(given));
  });
  tabs.postMessage({ wanted: true });
  keep(await Promise.race([answered, wait(ANSWER)]) ?? null);
}

/** Forgets a credential that is no longer used. The event `signed-out` says why. */
function end(reason) {
  keep(null);
  window.dispatchEvent(new CustomEvent("signed-out", { detail: reason }));
}

/** Returns a new value of `idempotencyKey`, with which a repeated POST has one effect. */
export function newIdempotencyKey() {
  return [...crypto.getRandomValues(new Uint32Array(4))].join("-");
}

/**
 * Sends a request to a path below the base of the API, and returns the response, whose status is 2xx.
 *
 * A 401 to the credential of the tab dispatches the event `signed-out` on the window.
 */
export async function send(method, path, { body, ifMatch, idempotencyKey, as = credential(), signal } = {}) {
  const headers = new Headers();
  if (as) headers.set(as.header, as.value);
  if (ifMatch) headers.set("if-match", ifMatch);
  if (idempotencyKey) headers.set("idempotency-key", idempotencyKey);
  if (body !== undefined) headers.set("content-type", "application/json");
  let response;
  count(1);
  try {
    response = await fetch(new URL(path, BASE), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.any([AbortSignal.timeout(TIMEOUT), ...(signal ? [signal] : [])]),
    });
  } catch {
    if (!signal?.aborted) tellOutage();
    throw new Failure(NO_RESPONSE);
  } finally {
    count(-1);
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw refused(problem, response.status, response.headers.get("retry-after"), as, body);
}

/** The state of the service is asked for at once, and not only every few seconds. */
const tellOutage = () => window.dispatchEvent(new Event("outage"));

/** Counts a request that begins or ends. The page tells while one takes long. */
function count(change) {
  waiting += change;
  document.body.classList.toggle("waiting", waiting > 0);
}

/** Returns the failure of a response that is no success. */
function refused(problem, status, retryAfter, as, body) {
  // The scopes may have changed.
  if (status === 403 && as) forgetScopes();
  if (status === 401 && as && as.value === credential()?.value) end("Your key or session is no longer valid.");
  if (status === 503) tellOutage();
  return new Failure(message(problem, status, body), status, status === 429 ? Number(retryAfter) : 0);
}

function forgetScopes() {
  known = {};
  const { scopes, ...current } = credential() ?? {};
  if (scopes) keep(current);
}

/** Sends a request, and returns the JSON of its response. */
export async function json(method, path, options) {
  const response = await send(method, path, options);
  return response.json();
}

/** Sends a request, and returns the resource of its response, with its entity tag. */
export async function versioned(method, path, options) {
  const response = await send(method, path, options);
  return { value: await response.json(), etag: response.headers.get("etag") };
}

/** Uploads a file, and reports the part that is sent, from 0 to 1. Only XMLHttpRequest tells the progress. */
export function upload(path, file, { progress, signal, idempotencyKey }) {
  const as = credential();
  const request = new XMLHttpRequest();
  request.open("POST", new URL(path, BASE));
  request.setRequestHeader(as.header, as.value);
  request.setRequestHeader("idempotency-key", idempotencyKey);
  // The service detects the type from the content, and its refusal says which types there are.
  request.setRequestHeader("content-type", "application/octet-stream");
  request.responseType = "json";
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => request.abort());
    request.upload.addEventListener("progress", ({ loaded, total }) => progress(loaded / total));
    request.addEventListener("load", () => {
      const { status, response } = request;
      if (status === 200) resolve(response);
      else reject(refused(response ?? {}, status, request.getResponseHeader("retry-after"), as));
    });
    for (const event of ["error", "abort"]) request.addEventListener(event, () => reject(new Failure(NO_RESPONSE)));
    request.send(file);
  });
}

/** Returns a function that returns the items of a list, one page at each call, and then null. Its `isLast` tells the end before. */
export function pages(path, signal) {
  let next = path;
  const page = async () => {
    if (next === null) return null;
    const response = await send("GET", next, { signal });
    const link = /<([^>]+)>; rel="next"/.exec(response.headers.get("link"));
    // The host of the link is that of other clients.
    next = link && path.split("?")[0] + new URL(link[1], BASE).search;
    return response.json();
  };
  return Object.assign(page, { isLast: () => next === null });
}

/** Returns a function like that of `pages`, for the record of changes with these filters, from the newest one. */
export function changePages(filters) {
  const read = [];
  let [before, isOver] = [undefined, false];
  const page = async () => {
    // A response may have few changes, or none, while more remain. One more than is shown tells whether there are more.
    for (let responses = 0; !isOver && read.length <= CHANGES && responses < MAX_RESPONSES; responses += 1) {
      const query = new URLSearchParams([...filters, ["order", "desc"], ["limit", CHANGES + 1]]);
      if (before !== undefined) query.set("before", before);
      const { changes, next } = await json("GET", `changes?${query}`);
      isOver = next === before;
      before = next;
      read.push(...changes);
    }
    return read.splice(0, CHANGES);
  };
  return Object.assign(page, { isLast: () => isOver && read.length === 0 });
}

/** Returns the scopes of the credential of this tab. Those of the last time are used at first: they are asked for meanwhile. */
export async function scopes() {
  const current = credential();
  if (known.value !== current?.value) {
    const asked = json("GET", "limits").then(({ scopes: granted }) => {
      known = { value: current?.value, scopes: granted };
      if (credential()?.value === current?.value) keep({ ...current, scopes: granted });
      return granted;
    });
    // The next view asks again.
    asked.catch(() => { known = {}; });
    known = { value: current?.value, scopes: current?.scopes ?? asked };
  }
  return known.scopes;
}

/**
 * Follows the record of changes with these filters until `signal` is aborted, and calls `changed` for each change behind the position
 * `last`, or for each new one. Resumes after interruptions, and after
 * the time in which the tab is hidden; calls `missed` if changes were lost meanwhile. Returns if the caller may not read the record.
 */
export async function follow({ filters = "", last, changed, missed, signal }) {
  const as = credential();
  let pause = SHORTEST_PAUSE;
  while (!signal.aborted) {
    // A browser opens few connections to a host, for all tabs.
    if (document.hidden) await new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); });
    const attempt = watch(signal);
    const opened = Date.now();
    const headers = { accept: "text/event-stream", [as.header]: as.value, ...(last && { "last-event-id": last }) };
    try {
      const response = await fetch(new URL(`changes?${filters}`, BASE), { headers, cache: "no-store", credentials: "omit", signal: attempt.signal });
      if ([401, 403].includes(response.status)) return;
      if (response.status === 410) {
        last = undefined;
        missed();
      }
      pause = Math.max(pause, Number(response.headers.get("retry-after")) * 1_000 || 0);
      if (response.ok) {
        for await (const { event, id, data } of events(response.body)) {
          attempt.isAlive();
          last = id;
          if (event === "change") changed(JSON.parse(data));
        }
      }
    } catch {
      // Opened again below.
    }
    attempt.end();
    if (Date.now() - opened > SILENCE || document.hidden) pause = SHORTEST_PAUSE;
    await wait(pause);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }
}

/** Returns a signal that is aborted with `signal`, when the tab is hidden, or without `isAlive` for some time. */
function watch(signal) {
  const attempt = new AbortController();
  const hide = () => document.hidden && attempt.abort();
  document.addEventListener("visibilitychange", hide);
  let timer;
  const isAlive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt.abort(), SILENCE);
  };
  isAlive();
  const end = () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", hide);
    attempt.abort();
  };
  return { signal: AbortSignal.any([attempt.signal, signal]), isAlive, end };
}

/** Yields the events of a stream (WHATWG HTML, section 9.2), as the service writes them: with fields of one line. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      yield Object.fromEntries(block.split("\n").map((line) => {
        const colon = line.indexOf(":");
        return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
      }));
    }
  }
}

/** Signs a user in, and returns the credential. */
export async function logIn(username, password) {
  const token = await json("POST", "user/login", { body: { username, password }, as: null });
  // A proxy with a password needs the Authorization of the browser.
  return { header: "api_key", value: token, isSession: true };
}

/** Forgets the credential, and ends the session of a user. The session ends by itself if the server does not respond. */
export function signOut() {
  const current = credential();
  keep(null);
  tabs.postMessage({ ended: current.value });
  if (current.isSession) send("GET", "user/logout", { as: current }).catch(() => {});
}

/** Returns true if this page may use the public demo keys. */
export async function hasDemoKeys() {
  const index = await json("GET", "", { as: null });
  return index.demoKeys === true;
}

/** Returns the state of the service, and a text for it. */
export async function readiness() {
  try {
    const response = await fetch(new URL("readyz", document.baseURI), {
      cache: "no-store",
      signal: AbortSignal.timeout(5_000),
    });
    if (response.ok) return ["ready", "Ready"];
    const problem = await response.json();
    return ["unready", `Not ready: ${problem.detail}`];
  } catch {
    return ["unready", "No response"];
  }
}
