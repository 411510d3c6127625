// An attempt's log: its end as it grows, any place in it, the lines with a text, and all of it as a file.
// The address holds the attempt, the text, and the place: `at` is an offset in bytes; without it the end is followed.

import { ApiError, get } from "../api.js";
import { byId, element, setChildren, setRefused, setText, tell, words } from "../dom.js";
import { bytes, number, plural } from "../format.js";
import { jobPage, path } from "../job_page.js";
import { DiagnosticCard } from "../diagnostic_card.js";

const CHUNK_BYTES = 256 << 10, HELD_CHARACTERS = 4 << 20, DOWNLOAD_BYTES_MAX = 256 << 20;
const LINES_FOUND_MAX = 500;
const query = new URLSearchParams(location.search);
const log = byId("log"), follow = byId("follow");

/** The part of the log that is shown: its text, its bytes from `start` to `end`, and of each answer the offset and length. */
let shown = null;
let size = 0;
let matches = null;

byId("search").value = query.get("search") ?? "";
follow.checked = !query.has("at") && query.get("follow") !== "no";

const diagnosticCard = new DiagnosticCard(path);
const page = jobPage(async () => {
  const { attempts } = await get(`${path}/attempts?limit=100`);
  const refusal = await readMore().catch(explain);
  return [attempts, refusal];
}, (job, [attempts, refusal], mayOperate) => {
  diagnosticCard.show(job, mayOperate);
  setChildren(byId("attempt"), ...attempts.map((one) =>
    element("option", { value: one.number },
      `${number(one.number)}: ${words(one.cause).toLowerCase()}${one.stage === "ACTIVE" ? ", runs the job" : ""}`)));
  if (document.activeElement !== byId("attempt")) byId("attempt").value = query.get("attempt") ?? String(defaultOf(attempts));
  setText(byId("log-size"), shown ? bytes(size) : "");
  setRefused(byId("download"), shown ? "" : "No log yet.");
  showHint(refusal);
  showText();
}, [], 1500);

/** The default attempt; while its log cannot be read, the attempt that runs the job, or else the newest. */
function defaultOf(attempts) {
  const running = attempts.find((one) => one.stage === "ACTIVE") ?? attempts[0];
  return shown?.attempt ?? running?.number ?? "";
}

/** A log that cannot be read is not a fault of the page. */
function explain(error) {
  if (!(error instanceof ApiError) || error.isOutage) throw error;
  return error.text;
}

function read(parameters) {
  const attempt = query.get("attempt");
  return get(`${path}/logs?${new URLSearchParams({ ...parameters, ...(attempt ? { attempt } : {}) })}`);
}

/** Reads the first part, then what has been written since if the end is followed; and the lines with the text, once. */
async function readMore() {
  if (!shown) {
    const at = Number(query.get("at") ?? NaN);
    const answer = await read(Number.isNaN(at) ? { tail_bytes: CHUNK_BYTES } : { offset: at, limit_bytes: CHUNK_BYTES });
    shown = { attempt: answer.attempt, text: "", start: answer.offset, end: answer.next_offset, answers: [] };
    append(answer);
    size = answer.size_bytes;
  } else if (follow.checked) {
    const answer = await read({ offset: shown.end, limit_bytes: CHUNK_BYTES });
    if (answer.attempt !== shown.attempt || answer.size_bytes < shown.end) {
      shown = null;
      return readMore();
    }
    size = answer.size_bytes;
    append(answer);
    if (shown.text.length > HELD_CHARACTERS) forgetOldest();
  }
  if (matches === null && query.get("search")) await search();
  return "";
}

function append(answer) {
  shown.text += answer.text;
  shown.end = answer.next_offset;
  if (answer.text) shown.answers.push({ start: answer.offset, length: answer.text.length });
}

/** Keeps the newest half of a text that has grown very long. A mask is shorter than its secret, so offsets are remembered. */
function forgetOldest() {
  let dropped = 0;
  while (shown.answers.length > 1 && shown.text.length - dropped > HELD_CHARACTERS / 2) dropped += shown.answers.shift().length;
  shown.text = shown.text.slice(dropped);
  shown.start = shown.answers[0].start;
}

async function search() {
  matches = [];
  let from = 0;
  do {
    const answer = await readOnceFree({ offset: from, search: query.get("search") });
    matches.push(...answer.matches);
    if (answer.next_offset <= from) break;
    [from, size] = [answer.next_offset, answer.size_bytes];
  } while (from < size && matches.length < LINES_FOUND_MAX);
  byId("matches").hidden = matches.length === 0;
  setChildren(byId("matches"), ...matches.map((one) => element("li", {}, element("a", { href: addressOf(one.offset) }, one.text))));
}

/** Only a few logs are searched at once: waits until it is this one's turn. */
async function readOnceFree(parameters) {
  for (;;) {
    try {
      return await read(parameters);
    } catch (error) {
      if (error.code !== "TOO_MANY_IN_FLIGHT") throw error;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}

/** The page at another place of the log. */
function addressOf(at) {
  const there = new URLSearchParams(query);
  if (at === null) there.delete("at");
  else there.set("at", at);
  return `${location.pathname}?${there}`;
}

function showHint(refusal) {
  const hints = [
    refusal,
    matches ? `${matches.length >= LINES_FOUND_MAX ? `The first ${number(matches.length)} lines` : plural(matches.length, "line")} with “${query.get("search")}”.` : "",
    shown && shown.start > 0 ? `From byte ${number(shown.start)}.` : "",
  ];
  setText(byId("log-hint"), hints.filter(Boolean).join(" "));
}

function showText() {
  if (!shown) return;
  byId("earlier").hidden = shown.start === 0;
  byId("later").hidden = follow.checked || shown.end >= size;
  byId("log-end").hidden = !query.has("at");
  byId("log-end").href = addressOf(null);
  if (log.textContent === shown.text) return;
  // Text is added at the end, so that a selection stays.
  const before = log.textContent;
  if (before && shown.text.startsWith(before) && log.firstChild) log.append(shown.text.slice(before.length));
  else log.textContent = shown.text;
  if (follow.checked) log.scrollTop = log.scrollHeight;
}

byId("earlier").addEventListener("click", () => attempt(async () => {
  const from = Math.max(0, shown.start - CHUNK_BYTES);
  const answers = [];
  for (let at = from; at < shown.start;) {  // an answer ends with a line, so the piece of a line before `start` is another one
    const answer = await read({ offset: at, limit_bytes: shown.start - at });
    if (answer.next_offset <= at) break;
    answers.push(answer);
    at = answer.next_offset;
  }
  const height = log.scrollHeight - log.scrollTop;
  const text = answers.map((one) => one.text).join("");
  shown.text = text + shown.text;
  shown.start = Math.min(answers[0]?.offset ?? from, shown.start);  // what is no longer kept is left out
  shown.answers.unshift({ start: shown.start, length: text.length });
  showText();
  log.scrollTop = log.scrollHeight - height;
}));
byId("later").addEventListener("click", () => attempt(async () => {
  const answer = await read({ offset: shown.end, limit_bytes: CHUNK_BYTES });
  append(answer);
  size = answer.size_bytes;
  showText();
}));
byId("log-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setQuery("search", byId("search").value.trim());
  setQuery("at", "");
  location.reload();
});
byId("attempt").addEventListener("change", () => {
  setQuery("attempt", byId("attempt").value);
  setQuery("at", "");
  location.reload();
});
follow.addEventListener("change", () => {
  setQuery("follow", follow.checked ? "" : "no");
  if (follow.checked && query.has("at")) location.assign(addressOf(null));
  page.now();
});
byId("download").addEventListener("click", () => attempt(async () => {
  const parts = [];
  for (let from = 0; from < Math.min(size, DOWNLOAD_BYTES_MAX);) {
    const answer = await read({ offset: from, limit_bytes: 1 << 20 });
    if (answer.next_offset <= from) break;
    parts.push(answer.text);
    from = answer.next_offset;
  }
  const url = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
  element("a", { href: url, download: `${byId("name").textContent}-${shown.attempt}.log` }).click();
  URL.revokeObjectURL(url);
}));

/** Carries out a button's action, and shows why if it fails. */
async function attempt(act) {
  try {
    await act();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(error.text, "bad");
  }
}

function setQuery(name, value) {
  if (value) query.set(name, value);
  else query.delete(name);
  const rest = query.toString();
  history.replaceState(null, "", location.pathname + (rest && `?${rest}`));
}
