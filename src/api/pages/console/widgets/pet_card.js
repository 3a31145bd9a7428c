// A pet as a card, with its first picture that the service stores.

import { element } from "../dom.js";
import { pictureId, pictureSource } from "../pictures.js";

const WIDTH = 384;

export function petCard(pet) {
  const kinds = [pet.category, ...pet.tags].map((it) => it?.name).filter(Boolean).join(" · ");
  return element("li", { className: "pet" },
    element("div", { className: "picture" }, thumbnail(pet)),
    element("div", { className: "facts" },
      element("h2", {}, element("a", { href: `#/pets/${pet.id}`, title: pet.name }, pet.name)),
      element("span", { className: `state ${pet.status}` }, pet.status)),
    element("p", { className: "quiet", title: kinds }, kinds));
}

/** Returns the thumbnail of a pet, or its initial. */
export function thumbnail(pet) {
  const id = pet.photoUrls.map((url) => pictureId(pet, url)).find(Boolean);
  if (!id) return element("span", { ariaHidden: "true" }, [...pet.name][0]);
  const image = element("img", { alt: "", loading: "lazy", decoding: "async", width: WIDTH, height: WIDTH * 0.75 });
  image.src = pictureSource(pet, id, WIDTH);
  return image;
}
