// Pictures of a pet: shown in full size, moved and removed. Links to other hosts are shown, and never loaded.

import { element } from "../dom.js";
import { pictureId, pictureSource } from "../pictures.js";
import { ask } from "./dialog.js";

const WIDTH = 768;

/**
 * Returns the gallery. `move` gets two places in `photoUrls` to exchange, and the new place of the moved picture in the gallery;
 * `remove` gets an image, its name and its place in the gallery. Without them, the pictures are only shown.
 */
export function gallery(pet, images, { move, remove } = {}) {
  const ids = pet.photoUrls.map((url) => pictureId(pet, url));
  const listed = ids.map((id, place) => ({ id, place })).filter(({ id }) => images.some((image) => image.id === id));
  // Pictures that the pet does not list come last, and have no place.
  const pictures = [...listed, ...images.filter(({ id }) => !ids.includes(id))];
  const links = pet.photoUrls.filter((_, place) => !listed.some((picture) => picture.place === place));
  const items = pictures.map(({ id, place }, index) => {
    const name = `picture ${index + 1}`;
    const action = (text, symbol, act, more = "") =>
      element("button", { className: `plain ${more}`, title: text, ariaLabel: `${text}: ${name}`, disabled: !act, on: { click: () => act() } }, symbol);
    const exchange = (to) =>
      place !== undefined && pictures[to]?.place !== undefined && (() => move(place, pictures[to].place, to));
    return element("li", {},
      element("button", { className: "picture", ariaLabel: `Show ${name} in full size`, on: { click: () => showLarge(pet, id) } },
        element("img", { src: pictureSource(pet, id, WIDTH), alt: `${pet.name}, ${name}`, loading: "lazy" })),
      move && element("div", { className: "choices" },
        action("Move earlier", "←", exchange(index - 1)),
        action("Move later", "→", exchange(index + 1)),
        action("Remove", "✕", () => remove(id, name, index), "bad")));
  });
  return [
    items.length > 0 ? element("ul", { id: "gallery", className: "gallery" }, ...items)
      : element("p", { className: "quiet" }, "No pictures yet."),
    links.length > 0 && element("details", {},
      element("summary", {}, `Further photoUrls: ${links.length}`),
      element("ul", { id: "links" }, ...links.map((url) => element("li", {}, link(url))))),
  ].filter(Boolean);
}

/** Returns a link to a page on the web, and other URLs as text. */
function link(url) {
  if (!/^https?:\/\//i.test(url)) return url;
  return element("a", { href: url, rel: "noreferrer noopener", target: "_blank" }, url);
}

function showLarge(pet, id) {
  return ask(pet.name, [element("img", { className: "large", src: pictureSource(pet, id), alt: pet.name })], { Close: null });
}
