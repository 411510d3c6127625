// The end of an attempt's log, filtered as the address says.

import { ApiError, get } from "../api.js";
import { byId, element, setChildren, setText, words } from "../dom.js";
import { bytes, number, plural } from "../format.js";
import { jobPage, path } from "../job_page.js";

const TAIL_BYTES = 1 << 20, SHOWN_LINES = 2000;
const query = new URLSearchParams(location.search);
const log = byId("log"), follow = byId("follow");
byId("search").value = query.get("search") ?? "";
follow.checked = query.get("follow") !== "no";
let text = "";
let number_ = null;

jobPage(async () => {
  const { attempts } = await get(`${path}/attempts?limit=100`);
  const wanted = query.get("attempt");
  const answer = await get(`${path}/logs?tail_bytes=${TAIL_BYTES}${wanted ? `&attempt=${encodeURIComponent(wanted)}` : ""}`).catch(explain);
  return [attempts, answer];
}, (job, [attempts, answer]) => {
  setChildren(byId("attempt"), ...attempts.map((one) =>
    element("option", { value: one.number }, `${number(one.number)}: ${words(one.cause).toLowerCase()}`)));
  byId("attempt").value = query.get("attempt") ?? String(attempts[0]?.number ?? "");
  text = answer.text ?? "";
  number_ = answer.attempt;
  setText(byId("log-size"), answer.refusal ? "" : bytes(answer.size_bytes));
  byId("download").disabled = !text;
  show(answer);
}, [], 2000);

/** A log that cannot be read is not a fault of the page. */
function explain(error) {
  if (!(error instanceof ApiError) || error.isOutage) throw error;
  return { refusal: error.text };
}

let lastAnswer = {};
function show(answer = lastAnswer) {
  lastAnswer = answer;
  const search = byId("search").value.toLowerCase();
  const lines = text.split("\n").filter((line) => !search || line.toLowerCase().includes(search));
  const shown = lines.slice(-SHOWN_LINES).join("\n");
  const hints = [
    answer.refusal ?? "",
    search && !answer.refusal ? `${plural(lines.length, "line")} with “${search}”.` : "",
    answer.truncated ? `Only the last ${bytes(TAIL_BYTES)} are here.` : "",
  ];
  setText(byId("log-hint"), hints.filter(Boolean).join(" "));
  if (log.textContent === shown) return;
  setText(log, shown);
  if (follow.checked) log.scrollTop = log.scrollHeight;
}

byId("log-form").addEventListener("submit", (event) => event.preventDefault());
byId("log-form").addEventListener("input", (event) => {
  setQuery("search", byId("search").value);
  setQuery("follow", follow.checked ? "" : "no");
  if (event.target === byId("attempt")) {
    setQuery("attempt", byId("attempt").value);
    location.reload();
  }
  show();
});
byId("download").addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  element("a", { href: url, download: `${byId("name").textContent}-${number_}.log` }).click();
  URL.revokeObjectURL(url);
});

function setQuery(name, value) {
  if (value) query.set(name, value);
  else query.delete(name);
  const rest = query.toString();
  history.replaceState(null, "", location.pathname + (rest && `?${rest}`));
}
