// The API: sends requests with the credential of this tab, and turns every failure into one that a person can act on.

const BASE = new URL("api/v3/", document.baseURI);
const CREDENTIAL = "credential";
const TIMEOUT = 15_000;

/** Failure of a request: what to tell the person, and the status, 0 without a response. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
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

/**
 * Sends a request to a path below the base of the API, and returns the response, whose status is 2xx.
 *
 * A 401 to the credential of the tab dispatches the event `signed-out` on the window.
 */
export async function send(method, path, { body, as = credential() } = {}) {
  const headers = new Headers();
  if (as) headers.set(as.header, as.value);
  if (body !== undefined) headers.set("content-type", "application/json");
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.timeout(TIMEOUT),
    });
  } catch {
    throw new Failure("The server did not respond. Check the network, and try again.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401 && as && as.value === credential()?.value) {
    keep(null);
    window.dispatchEvent(new Event("signed-out"));
  }
  throw new Failure(sentence(problem.detail ?? response.statusText), response.status);
}

/** Sends a request, and returns the JSON of its response. */
export async function json(method, path, options) {
  const response = await send(method, path, options);
  return response.json();
}

/** Signs a user in, and returns the credential. */
export async function logIn(username, password) {
  const token = await json("POST", "user/login", { body: { username, password }, as: null });
  return { header: "authorization", value: `Bearer ${token}` };
}

/** Ends the session of a user, or forgets the key. */
export async function signOut() {
  const current = credential();
  keep(null);
  if (current?.header === "authorization") await send("GET", "user/logout", { as: current });
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

function sentence(text) {
  const capital = `${text.charAt(0).toUpperCase()}${text.slice(1)}`;
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}
