// Messages of the service in the words of these pages: names of fields, and sizes.

import { formatSize } from "./dom.js";

/** Names that the pages show, by the field of a request. */
const NAMES = {
  actor: "By",
  body: "Everything together",
  callerId: "Number of the caller",
  category: "Category",
  expiresIn: "Time until it expires",
  kind: "Kind",
  kinds: "Kinds",
  name: "Name",
  overlap: "Time for which the old one stays valid",
  password: "Password",
  petId: "Number of the pet",
  photoUrls: "List of pictures",
  plan: "Plan",
  quantity: "Quantity",
  resource: "Number",
  scopes: "Scopes",
  shipDate: "Ships at",
  status: "Status",
  tags: "Tag",
  url: "URL",
  username: "Username",
  webhookId: "Number of the webhook",
};

/** Returns what a problem document says about a request with this body. */
export function message({ detail, errors = [] }, status, body) {
  const text = errors.length > 0
    ? errors.map((error) => invalid(error, body)).join("; ")
    : detail ?? `The server responded with ${status}`;
  // The page counts the time down.
  return sentence(withSizes(text.replace(/; retry in \d+ s$/, "")));
}

function invalid({ field, reason }, body) {
  if (field === "petId" && reason.includes("existing pet")) return `There is no pet ${body.petId}`;
  // The first one of a list is the only one.
  const [first] = field.replace(/^\[0\]\./, "").split(/[.[]/);
  return `${Object.hasOwn(NAMES, first) ? NAMES[first] : field} ${reason}`;
}

const withSizes = (text) => text.replace(/\b(\d{4,}) bytes\b/g, (_, bytes) => formatSize(Number(bytes)));

function sentence(text) {
  const capital = `${text.charAt(0).toUpperCase()}${text.slice(1)}`;
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}
