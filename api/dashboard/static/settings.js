// The settings of a job, as the API declares them. Pages show and change every setting without knowing any by name.

import { get } from "./api.js";
import { element } from "./dom.js";
import { duration, NONE, number } from "./format.js";
import { changedParameters, parameterLines } from "./parameters.js";

/** @typedef {{path: string, type: string, change_class: string, description: string, default: any, minimum: ?number,
 *   maximum: ?number, choices: string[], of_types: string[]}} Setting */

let declared = null;

/** Reads the settings once; all entries of a kind, such as the parameters, are one setting. @returns {Promise<Setting[]>} */
export async function readSettings() {
  declared ??= (await get("/v1/settings")).settings
    .filter((one) => !one.path.includes(".*."))
    .map((one) => (one.path.endsWith(".*") ? { ...one, path: one.path.slice(0, -2), type: "object" } : one));
  return declared;
}

/** When a running job takes over another value. */
export const CHANGES = {
  FIXED: "it never changes",
  RESTART: "a change restarts the job",
  RESCALE: "a change rescales the job",
  NEXT_BATCH: "a change applies to the next batch",
  AT_ONCE: "a change applies at once",
};

/** The words of paths that are written in another way. */
const WORDS = { id: "ID", conf: "configuration" };

/** checkpoints.interval_ms becomes "Checkpoints: interval (ms)", artifact_id "Artifact ID". */
export function labelOf(path) {
  const [unit] = path.match(/_(ms|bytes)$/) ?? [""];
  const text = path.slice(0, path.length - unit.length).replaceAll("_", " ").replace(".", ": ").replace(/\w+/g, (word) => WORDS[word] ?? word);
  return text.charAt(0).toUpperCase() + text.slice(1) + (unit && ` (${unit.slice(1)})`);
}

/** The value of a setting in a specification; null if it has none. */
export const valueAt = (spec, path) => path.split(".").reduce((value, part) => value?.[part], spec) ?? null;

/** Whether a specification has a setting: an option of a restart strategy belongs to some types only. */
const belongs = (setting, type) => !setting.of_types.length || setting.of_types.includes(type);

export const settingsOf = (settings, spec) =>
  settings.filter((one) => belongs(one, valueAt(spec, "restart.type")));

/** A value as text. */
export function shownValue(path, value) {
  if (value === null || value === undefined || value.length === 0) return NONE;
  if (typeof value === "object" && value.secret) return `the secret ${value.secret}`;
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "number") return path.endsWith("_ms") ? duration(value) : number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

// --- a form ----------------------------------------------------------------------------------------------------------

/** The field of a setting that can be changed, with its label and its help. @param {Setting} setting */
export function settingField(setting) {
  const id = fieldId(setting);
  const hint = `${id}-hint`;
  return element("div", { dataset: { setting: setting.path } },
    element("label", { for: id }, labelOf(setting.path)), control(setting, { id, "aria-describedby": hint }),
    element("p", { class: "hint", id: hint }, `${setting.description} ${LINES[setting.type] ?? ""}${sentence(CHANGES[setting.change_class])}`));
}

export const fieldId = ({ path }) => path.replace(".", "-");
const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
/** How a text of several lines is written. */
const LINES = {
  object: "One per line: NAME=VALUE, or NAME=secret:NAME for a secret. ",
  array: "One per line. ",
};
const isLines = ({ type }) => type === "object" || type === "array";

function control(setting, attributes) {
  if (isLines(setting)) return element("textarea", { ...attributes, rows: 4, spellcheck: "false" });
  if (setting.choices.length) {
    return element("select", attributes, element("option", { value: "" }, "default"),
      ...setting.choices.map((one) => element("option", { value: one }, one)));
  }
  if (setting.type === "string") return element("input", attributes);
  return element("input", { ...attributes, type: "number", min: setting.minimum, max: setting.maximum,
    step: setting.type === "number" ? "any" : 1, required: setting.default !== null && !setting.of_types.length });
}

/** The text that a field has for a specification. @param {Setting} setting */
export function fieldText(setting, spec) {
  const value = valueAt(spec, setting.path);
  if (setting.type === "object") return parameterLines(value ?? {});
  if (setting.type === "array") return (value ?? []).join("\n");
  return value === null ? "" : String(value);
}

/** The part of a merge patch that makes of a specification what the texts of the fields say; null resets a setting. */
export function changeOf(settings, spec, textOf) {
  const change = {};
  const type = textOf({ path: "restart.type" }) || null;
  for (const setting of settings) {
    const text = textOf(setting);
    if (text === fieldText(setting, spec) || !belongs(setting, type)) continue;
    const value = setting.type === "object" ? changedParameters(valueAt(spec, setting.path) ?? {}, text) : valueOf(setting, text);
    if (setting.type !== "object" || value) place(change, setting.path.split("."), value);
  }
  if (change.restart && "type" in change.restart) change.restart = type && { ...change.restart, type };
  return change;
}

function valueOf({ type }, text) {
  if (type === "array") return text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (text === "") return null;
  return type === "string" ? text : Number(text);
}

function place(change, [first, ...rest], value) {
  if (rest.length) place((change[first] ??= {}), rest, value);
  else change[first] = value;
}
