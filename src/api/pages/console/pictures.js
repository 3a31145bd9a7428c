// Pictures that the service stores. Other URLs in `photoUrls` are never loaded.

const STORED = /\/api\/v3\/pet\/(\d+)\/images\/([0-9a-f]{32})$/;

/** Returns the identifier of the picture of a pet at this URL, on any host, or undefined. */
export function pictureId(pet, url) {
  const match = STORED.exec(url);
  return match?.[1] === String(pet.id) ? match[2] : undefined;
}

/** Returns the path of a picture, relative to the page, of at most `width` pixels if it is given. */
export function pictureSource(pet, id, width) {
  return `api/v3/pet/${pet.id}/images/${id}${width ? `?width=${width}` : ""}`;
}
