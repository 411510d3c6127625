// Parameters and settings as lines of text, as forms take them: NAME=VALUE, or NAME=secret:SECRET.

import { ApiError } from "./api.js";

const SECRET = "secret:";

/** The values of lines `NAME=VALUE`; a value may hold further equals signs. */
export function parametersOf(text) {
  return Object.fromEntries(linesOf(text).map(([name, value]) =>
    [name, value.startsWith(SECRET) ? { secret: value.slice(SECRET.length) } : value]));
}

/** The lines that stand for values. */
export function parameterLines(values) {
  return Object.entries(values).map(([name, value]) =>
    `${name}=${typeof value === "string" ? value : SECRET + value.secret}`).join("\n");
}

/** The values to send so that `before` becomes what the lines say: null removes a value; null if nothing changes. */
export function changedParameters(before, text) {
  const shown = Object.fromEntries(linesOf(parameterLines(before)));
  const wanted = parametersOf(text);
  // A line that was not touched is not sent: its value may be masked.
  const set = linesOf(text).filter(([name, value]) => shown[name] !== value).map(([name]) => [name, wanted[name]]);
  const removed = Object.keys(before).filter((name) => !(name in wanted)).map((name) => [name, null]);
  return set.length || removed.length ? Object.fromEntries([...set, ...removed]) : null;
}

/** Says which line cannot be used; an empty string if all can. */
export function problemOfLines(text) {
  const lines = splitLines(text);
  const wrong = lines.find((line) => line.indexOf("=") < 1);
  if (wrong) return `“${wrong}” is not NAME=VALUE.`;
  const names = lines.map((line) => line.slice(0, line.indexOf("=")));
  const twice = names.find((name, index) => names.indexOf(name) < index);
  return twice ? `“${twice}” occurs twice.` : "";
}

const splitLines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function linesOf(text) {
  const lines = splitLines(text);
  const problem = problemOfLines(text);
  if (problem) throw new ApiError({ detail: problem });
  return lines.map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]);
}
