// Sign in with an API key, with the name and password of a user, or as the demo administrator.

import { hasDemoKeys, json, keep, keyCredential, logIn } from "../api.js";
import { element, field } from "../dom.js";

const DEMO_ADMINISTRATOR = "special-key";

export async function signIn({ notice, done }) {
  const isDemo = await hasDemoKeys().catch(() => false);
  const problem = element("p", { id: "problem", className: "problem" , attributes: { role: "alert" } });

  /** Keeps the credential that `find` returns, if it is valid. */
  async function enter(find) {
    problem.textContent = "";
    try {
      const found = await find();
      const { scopes } = await json("GET", "limits", { as: found });
      keep({ ...found, scopes });
      done();
    } catch (failure) {
      const isInvalid = failure.status === 401;
      problem.textContent = isInvalid ? "This key is not valid: it is mistyped, expired or revoked." : failure.message;
    }
  }

  const key = element("input", { id: "key", type: "password", autocomplete: "off", required: true });
  const username = element("input", { id: "username", autocomplete: "username", required: true });
  const password = element("input", {
    id: "password", type: "password", autocomplete: "current-password", required: true,
  });
  return [
    element("h1", {}, "Sign in"),
    notice && element("p", { className: "notice" }, notice),
    isDemo && element("section", { className: "card demo" },
      element("p", {}, "This is a demo: everyone on this machine may use its public keys."),
      element("button", { id: "demo", on: { click: () => enter(() => keyCredential(DEMO_ADMINISTRATOR)) } },
        "Sign in as the demo administrator")),
    problem,
    element("div", { className: "columns" },
      form("With an API key", () => keyCredential(key.value.trim()), enter,
        field("API key", key),
        element("p", { className: "quiet" }, "The key stays in the tabs of this console until you close them or sign out.")),
      form("As a user", () => logIn(username.value, password.value), enter,
        field("Username", username), field("Password", password))),
  ];
}

function form(title, find, enter, ...fields) {
  const submit = (event) => {
    event.preventDefault();
    enter(find);
  };
  return element("form", { className: "card", on: { submit } },
    element("h2", {}, title), ...fields, element("button", {}, "Sign in"));
}
