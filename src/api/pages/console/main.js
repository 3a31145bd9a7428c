// The frame: which view is shown, its place in the fragment of the URL, and the state of the service.

import { credential, readiness, signOut } from "./api.js";
import { element } from "./dom.js";
import { account } from "./views/account.js";
import { signIn } from "./views/sign_in.js";

/** Views by their fragment. Each returns its content; `signal` is aborted when another one is shown. */
const VIEWS = {
  account: { title: "Account", show: account },
};
const FIRST = "account";
const READINESS_EACH = 10_000;

const main = document.getElementById("main");
const views = document.getElementById("views");
const signOutButton = document.getElementById("sign-out");
let shown = new AbortController();

/** Shows the view of the fragment, or the form to sign in with. */
async function show(notice = "") {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const isSignedIn = credential() !== null;
  const name = location.hash.slice(2) in VIEWS ? location.hash.slice(2) : FIRST;
  const { title, show: view } = isSignedIn ? VIEWS[name] : { title: "Sign in", show: signIn };
  document.title = `${title} – Pet inventory`;
  views.hidden = signOutButton.hidden = !isSignedIn;
  for (const link of views.children) link.ariaCurrent = link.hash === `#/${name}` ? "page" : null;
  const content = await view({ signal, notice, done: () => show() });
  if (signal.aborted) return;
  main.replaceChildren(...content);
  main.focus({ preventScroll: true });
}

async function showReadiness() {
  if (document.hidden) return;
  const [className, text] = await readiness();
  const status = document.getElementById("status");
  // Setting the same text again would make screen readers repeat it.
  if (status.textContent === text) return;
  status.className = className;
  status.textContent = text;
}

views.append(...Object.entries(VIEWS).map(([name, { title }]) => element("a", { href: `#/${name}` }, title)));
signOutButton.addEventListener("click", async () => {
  // The session ends by itself if the server does not respond.
  await signOut().catch(() => {});
  show("You are signed out.");
});
addEventListener("hashchange", () => show());
addEventListener("signed-out", () => show("Your key or session is no longer valid. Sign in again."));
document.addEventListener("visibilitychange", showReadiness);
setInterval(showReadiness, READINESS_EACH);
showReadiness();
show();
