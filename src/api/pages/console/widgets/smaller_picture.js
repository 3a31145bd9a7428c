// Pictures that the service refuses, made smaller in the browser.

import { element } from "../dom.js";

const QUALITY = 0.85;
/** Maximum width and height, in pixels. */
const MAX_SIDE = 4_096;

/** Returns true if the browser can decode a picture. */
export async function canDecode(picture) {
  try {
    (await createImageBitmap(picture)).close();
    return true;
  } catch {
    return false;
  }
}

/** Returns a picture as a JPEG of at most the maximum width and height, which are divided by `divisor`. */
export async function smallerPicture(picture, divisor) {
  const bitmap = await createImageBitmap(picture);
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height)) / divisor;
  const [width, height] = [bitmap.width, bitmap.height].map((it) => Math.max(1, Math.round(it * scale)));
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  // What is transparent would become black.
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", QUALITY); });
}
