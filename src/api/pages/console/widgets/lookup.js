// What the rows of a view name: those that are wanted at the same time are read with one request, each once.

import { wait } from "../dom.js";
import { isTemporary } from "./problem.js";

/** Time after which they are read again after a failure, unless the service says another, in milliseconds. */
const AGAIN = 5_000;

/**
 * Returns a function that returns what has an identifier, undefined if it is gone. `readAll` returns those with several identifiers as
 * a map; it is called again after a failure that can pass.
 */
export function lookup(readAll, signal) {
  const read = new Map();
  let wanted = [];
  let reading;
  const patiently = async (ids) => {
    try {
      return await readAll(ids);
    } catch (failure) {
      if (!isTemporary(failure) || signal.aborted) throw failure;
      await wait(failure.retryAfter * 1_000 || AGAIN);
      return patiently(ids);
    }
  };
  const readWanted = async () => {
    // Once all rows of the page are there.
    await null;
    const ids = wanted;
    wanted = [];
    return patiently(ids);
  };
  const readOne = (id) => {
    if (wanted.push(id) === 1) reading = readWanted();
    return reading.then((found) => found.get(id));
  };
  return (id) => {
    if (!read.has(id)) read.set(id, readOne(id));
    return read.get(id);
  };
}
