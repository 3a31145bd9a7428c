// A pet as a card, with its first picture that the service stores.

import { element } from "../dom.js";
import { pictureId, pictureSource } from "../pictures.js";

const WIDTH = 384;

export function petCard(pet) {
  const { category, tags } = pet;
  const kinds = [category, ...tags].map((it) => it?.name).filter(Boolean).join(" · ");
  return element("li", { className: "pet" },
    element("div", { className: "picture" }, thumbnail(pet)),
    element("div", { className: "facts" },
      element("h2", {}, element("a", { href: `#/pets/${pet.id}`, title: pet.name }, pet.name)),
      element("span", { className: `state ${pet.status}` }, pet.status)),
    element("p", { className: "quiet", title: kinds },
      ...(category?.name ? [category.name, tags.length > 0 && " · "] : []).filter(Boolean), ...tagLinks(tags, " · ")));
}

/** Returns links to the pets with each of these tags. A tag may have no name. */
export function tagLinks(tags, separator) {
  const named = tags.map(({ name }) => name).filter(Boolean);
  return named.flatMap((tag, place) => [
    place > 0 ? separator : "", element("a", { className: "tag", href: `#/pets?${new URLSearchParams({ tag })}` }, tag)]);
}

/** Returns the thumbnail of a pet, or its initial. */
export function thumbnail(pet) {
  const id = pet.photoUrls.map((url) => pictureId(pet, url)).find(Boolean);
  if (!id) {
    const initial = element("span", { className: "initial", ariaHidden: "true" }, [...pet.name][0]);
    const sum = [...pet.name].reduce((total, letter) => total * 31 % 360 + letter.codePointAt(0), 0);
    initial.style.setProperty("--hue", sum % 360);
    return initial;
  }
  const image = element("img", { alt: "", loading: "lazy", decoding: "async", width: WIDTH, height: WIDTH * 0.75 });
  image.src = pictureSource(pet, id, WIDTH);
  return image;
}
