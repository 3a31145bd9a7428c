// A pet as a card, with its first picture that the service stores.

import { element } from "../dom.js";
import { pictureId, pictureSource } from "../pictures.js";

const WIDTH = 384;

export function petCard(pet) {
  const tags = pet.tags.map(({ name }) => name).filter(Boolean);
  return element("li", { className: "pet" },
    element("div", { className: "picture" }, thumbnail(pet)),
    element("div", { className: "facts" },
      element("h2", {}, element("a", { href: `#/pets/${pet.id}` }, pet.name)),
      element("span", { className: `state ${pet.status}` }, pet.status)),
    element("p", { className: "quiet" }, [pet.category?.name, ...tags].filter(Boolean).join(" · ")));
}

/** Returns the thumbnail of a pet, or its initial. */
function thumbnail(pet) {
  const id = pet.photoUrls.map((url) => pictureId(pet, url)).find(Boolean);
  if (!id) return element("span", { ariaHidden: "true" }, [...pet.name][0]);
  const image = element("img", { alt: "", loading: "lazy", decoding: "async", width: WIDTH, height: WIDTH * 0.75 });
  image.src = pictureSource(pet, id, WIDTH);
  return image;
}
