// Numbers and times in the form that people read. Pure functions; NONE stands for a value that is not known (yet).

export const NONE = "–";

const missing = (value) => value === null || value === undefined;
const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const significant = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const day = new Intl.DateTimeFormat("en-CA", { dateStyle: "short" });

export const number = (value) => (missing(value) ? NONE : count.format(value));

/** A number that may be small: 0.0213 stays 0.0213. */
export const decimal = (value) => (missing(value) ? NONE : Math.abs(value) < 1000 ? significant.format(value) : number(value));

/** 1536 becomes 1.5 KiB. */
export function bytes(value) {
  if (missing(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let scaled = value;
  let unit = 0;
  while (scaled >= 1023.95 && unit < units.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  return `${(unit === 0 ? count : short).format(scaled)} ${units[unit]}`;
}

/** Milliseconds: 870 ms, 4.2 s, 3 min 5 s, 2 h 10 min, 4 d 3 h. */
export function duration(ms) {
  if (missing(ms)) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${short.format(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return pair(seconds, 60, "min", 1, "s");
  if (seconds < 86_400) return pair(seconds, 3600, "h", 60, "min");
  return pair(seconds, 86_400, "d", 3600, "h");
}

function pair(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** How long ago an instant (ms since the epoch) was. */
export function ago(atMs, nowMs = Date.now()) {
  if (missing(atMs)) return NONE;
  const passed = Math.max(0, nowMs - atMs);
  return passed < 1000 ? "just now" : `${duration(Math.floor(passed / 1000) * 1000)} ago`;
}

/** Whether a date can be made of an instant; a clock of a driver may be wrong by any number. */
export const isDate = (atMs) => !missing(atMs) && Math.abs(atMs) <= 8.64e15;

/** An instant in UTC, to the millisecond. */
export const utc = (atMs) => (isDate(atMs) ? new Date(atMs).toISOString() : NONE).replace("T", " ").replace("Z", " UTC");

/** An instant as date and time in the viewer's zone. */
export function time(atMs) {
  if (!isDate(atMs)) return NONE;
  const at = new Date(atMs);
  return `${day.format(at)} ${clock.format(at)}`;
}

/** Records per second. */
export function rate(perSecond) {
  if (missing(perSecond)) return NONE;
  return `${(perSecond < 10 ? short : count).format(perSecond)}/s`;
}

/** A ratio as a percentage. */
export const percent = (ratio) => (missing(ratio) ? NONE : `${count.format(100 * ratio)} %`);

/** 1 checkpoint, 2 checkpoints. */
export const plural = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
