// A job's parameters as lines of text, as forms take them.

import { ApiError } from "./api.js";

/** The parameters of lines `NAME=VALUE`; the value may hold further equals signs. */
export function parametersOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const wrong = lines.find((line) => line.indexOf("=") < 1);
  if (wrong) throw new ApiError({ detail: `“${wrong}” is not NAME=VALUE.` });
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]));
}
