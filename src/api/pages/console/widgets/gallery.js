// Pictures of a pet: shown in full size, moved and removed. Links to other hosts are shown, and never loaded.

import { element } from "../dom.js";
import { pictureId, pictureSource } from "../pictures.js";
import { ask } from "./dialog.js";

const WIDTH = 768;

/** Returns the gallery. `move` gets two places in `photoUrls` to exchange; `remove` gets an image. */
export function gallery(pet, images, { move, remove }) {
  const ids = pet.photoUrls.map((url) => pictureId(pet, url));
  const pictures = images.map(({ id }) => ({ id, place: ids.indexOf(id) })).sort((one, other) => one.place - other.place);
  const links = pet.photoUrls.filter((_, place) => !images.some(({ id }) => id === ids[place]));
  const items = pictures.map(({ id, place }, index) => {
    const name = `picture ${index + 1}`;
    const exchange = (other) => other && place >= 0 && other.place >= 0 && (() => move(place, other.place, index));
    const action = (text, symbol, act) =>
      element("button", { className: "plain", title: text, ariaLabel: `${text}: ${name}`, disabled: !act, on: { click: act || (() => {}) } }, symbol);
    return element("li", {},
      element("button", { className: "picture", ariaLabel: `Show ${name} in full size`, on: { click: () => showLarge(pet, id) } },
        element("img", { src: pictureSource(pet, id, WIDTH), alt: `${pet.name}, ${name}`, loading: "lazy" })),
      element("div", { className: "choices" },
        action("Move earlier", "←", exchange(pictures[index - 1])),
        action("Move later", "→", exchange(pictures[index + 1])),
        action("Remove", "✕", () => remove(id, name))));
  });
  return [
    items.length > 0 ? element("ul", { id: "gallery", className: "gallery" }, ...items)
      : element("p", { className: "quiet" }, "No pictures yet."),
    links.length > 0 && element("details", {},
      element("summary", {}, `Further photoUrls: ${links.length}`),
      element("ul", { id: "links" }, ...links.map((url) => element("li", {}, link(url))))),
  ];
}

/** Returns a link to a page on the web, and other URLs as text. */
function link(url) {
  if (!/^https?:\/\//i.test(url)) return url;
  return element("a", { href: url, rel: "noreferrer noopener", target: "_blank" }, url);
}

function showLarge(pet, id) {
  return ask(pet.name, [element("img", { className: "large", src: pictureSource(pet, id), alt: pet.name })], { Close: null });
}
