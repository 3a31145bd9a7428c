// Makes a collection of openapi-to-postmanv2 run from its first request to its last, any number of times: requests use what
// those before them created, and nothing else, and delete it in the end, except for two accounts.
//
//     node collection.js collection.json
"use strict";

const { readFileSync, writeFileSync } = require("node:fs");

/** Variables that a response sets, and where they are in it. */
const SETS = {
  "Add a pet": { petId: "id" },
  "Upload an image of a pet": { imageId: "imageId" },
  "Place an order for a pet": { orderId: "id" },
  "Sign up": { username: "username", userId: "id" },
  "Create a caller": { callerId: "id" },
  "Create a key": { keyId: "id" },
  "Rotate a key": { keyId: "id" },
  "Create an OAuth client": { clientId: "id", basicAuthUsername: "client_id", basicAuthPassword: "client_secret" },
  "Create a webhook": { webhookId: "id" },
  "List login sessions": { sessionId: 'findLast((it) => it.caller === `user:${pm.collectionVariables.get("userId")}`)?.id' },
};
/** Fields of bodies whose values are variables, or that are different in each run. */
const BODIES = {
  "Replace a pet": { id: "{{petId}}", status: "available" },
  "Change parts of a pet": { status: "available" },
  "Place an order for a pet": { petId: "{{petId}}" },
  "Change an order": { status: "approved" },
  "Sign up": { username: "ada-{{$timestamp}}" },
  "Log in": { username: "{{username}}" },
  "Create many accounts": { username: "grace-{{$timestamp}}" },
  "Create a caller": { name: "acme-{{$timestamp}}" },
};
/** In each folder, requests that create something come first, then these, last. */
const LATE = ["Replace a pet", "Change parts of a pet", "Change an order", "Rotate a key", "Change an account", "Log in", "Log out", "Change a webhook"];
/** Deletions come after all other requests, what is inside before what it is in. */
const DELETIONS = [
  "Revoke an access token", "Delete an image", "Delete an order", "Delete a pet", "End a login session", "Delete an account",
  "Delete a webhook", "Revoke a key", "Revoke an OAuth client", "Delete a caller",
];
/** Only for a store without pets, and for a delivery that has failed. */
const LEFT_OUT = ["Add the sample store", "Send a delivery again"];

const path = process.argv[2];
const collection = JSON.parse(readFileSync(path, "utf8"));
const deletions = [];
for (const folder of collection.item) {
  for (const item of folder.item) complete(item);
  deletions.push(...folder.item.filter(({ name }) => DELETIONS.includes(name)));
  folder.item = folder.item.filter(({ name }) => !DELETIONS.includes(name) && !LEFT_OUT.includes(name));
  folder.item.sort((one, other) => rank(one.name) - rank(other.name));
}
deletions.sort((one, other) => DELETIONS.indexOf(one.name) - DELETIONS.indexOf(other.name));
collection.item.push({ name: "deletions", item: deletions });
writeFileSync(path, JSON.stringify(collection, null, 2));

function rank(name) {
  if (name in SETS) return Object.keys(SETS).indexOf(name);
  return 100 + LATE.indexOf(name);
}

function complete({ name, request, event }) {
  for (const variable of request.url.variable) variable.value = `{{${variable.key}}}`;
  for (const part of request.url.query) if (part.key === "username") part.value = "{{username}}";
  // Fields of a form are as good as parameters in the query.
  for (const part of request.body?.urlencoded ?? []) if (part.key === "name" || part.key === "token") part.disabled = false;
  if (name in BODIES) {
    const body = JSON.parse(request.body.raw);
    for (const one of [body].flat()) Object.assign(one, BODIES[name]);
    // The accounts of a list have different names.
    if (Array.isArray(body)) body.forEach((one, place) => { one.username += `-${place}`; });
    request.body.raw = JSON.stringify(body, null, 2).replace(/"\{\{(\w+Id)\}\}"/g, "{{$1}}");
  }
  const lines = Object.entries(SETS[name] ?? {}).map(
    ([variable, place]) => `if (pm.response.code < 300) pm.collectionVariables.set("${variable}", pm.response.json().${place});`);
  if (lines.length > 0) event.push({ listen: "test", script: { type: "text/javascript", exec: lines } });
}
