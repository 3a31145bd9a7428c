// Choice of scopes.

import { choiceBoxes } from "./boxes.js";

const SCOPES = ["read:pets", "write:pets", "read:orders", "write:orders", "read:changes", "admin"];

/** Returns a group of boxes, one for each scope of `offered`, and a function that returns the chosen ones. */
export const scopeBoxes = (chosen, offered = SCOPES) => choiceBoxes("Scopes", chosen, offered);
