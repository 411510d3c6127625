// The page of all jobs: live, filtered and sorted as the address says, with a form for a new job.

import { allJobs } from "../all_jobs.js";
import { ApiError, post, upload } from "../api.js";
import { byId, element, keyed, setChildren, setPill, setRefused, setText, since, tell, words } from "../dom.js";
import { showFieldProblems } from "../field_problems.js";
import { bytes, duration, NONE, number, plural, rate, time } from "../format.js";
import { isLagOld, sleepOf } from "../job_status.js";
import { live } from "../live.js";
import { parametersOf, problemOfLines } from "../parameters.js";
import { mayActAs, viewer } from "../viewer.js";

/** A job runs while it is changed, except for its downtime. */
const RUNS = new Set(["RUNNING", "RESCALING", "UPGRADING"]);
const STATUSES = ["RUNNING", "SLEEPING", "CREATED", "SUBMITTING", "SAVEPOINTING", "RESCALING", "UPGRADING", "RESTARTING", "STOPPING",
  "STOPPED", "FAILED", "FINISHED"];

/** Name, class, the value to sort by, and what is shown. */
const COLUMNS = [
  ["Status", null, (job) => job.status.state, (job, cell) => showStatus(job, cell)],
  ["Parallelism", "number", (job) => job.spec.parallelism, (job) => number(job.spec.parallelism)],
  ["Input", "number", (job) => job.metrics.input_rate, (job, cell) => showRates(job, cell)],
  ["Records waiting", "number", (job) => job.metrics.lag_records, (job, cell) => showWaiting(job, cell)],
  ["Lag", "number", (job) => job.metrics.lag_ms, (job) => duration(job.metrics.lag_ms)],
  ["State", "number", (job) => job.metrics.state_size, (job) => bytes(job.metrics.state_size)],
  ["Last checkpoint", null, (job) => job.status.latest_checkpoint?.completed_at_ms, (job, cell) => showCheckpoint(job, cell)],
  ["Restarts", "number", (job) => job.status.restarts, (job) => number(job.status.restarts)],
  ["Running for", "number", (job) => (job.status.running_since_ms === null ? null : -job.status.running_since_ms),
    (job) => (job.status.running_since_ms === null ? NONE : duration(wholeSeconds(Date.now() - job.status.running_since_ms)))],
];
const wholeSeconds = (ms) => Math.max(0, Math.floor(ms / 1000) * 1000);
const query = new URLSearchParams(location.search);

byId("filter-status").append(...STATUSES.map((status) => element("option", { value: status }, words(status))));
byId("filter-text").value = query.get("q") ?? "";
byId("filter-status").value = query.get("status") ?? "";
byId("columns").append(heading("Name", null), ...COLUMNS.map(([name, kind]) => heading(name, kind)));
byId("sort").append(...["Name", ...COLUMNS.map(([name]) => name)].flatMap((name) => [
  element("option", { value: name }, `${name}, ascending`), element("option", { value: `-${name}` }, `${name}, descending`)]));
byId("sort").addEventListener("input", () => sortBy(byId("sort").value));
byId("filters").addEventListener("input", () => {
  setQuery("q", byId("filter-text").value.trim());
  setQuery("status", byId("filter-status").value);
  show();
});
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("show-all").addEventListener("click", () => {
  byId("filter-text").value = byId("filter-status").value = "";
  byId("filters").dispatchEvent(new Event("input"));
});

let jobs = [];
const page = live(async () => {
  const user = await viewer();
  jobs = await allJobs();
  byId("loading").hidden = true;
  byId("new").hidden = !mayActAs(user, "OPERATOR");
  show();
}, { everyMs: 2000, stream: "/v1/stream", topics: ["job", "metrics"], redraw: () => show() });

function show() {
  const shown = sorted(jobs.filter(fits));
  byId("filters").hidden = jobs.length === 0;
  byId("table").hidden = shown.length === 0;
  byId("empty").hidden = jobs.length > 0;
  byId("none-fits").hidden = jobs.length === 0 || shown.length > 0;
  const running = jobs.filter((job) => RUNS.has(job.status.state)).length;
  setText(byId("summary"), jobs.length ? `${number(running)} of ${number(jobs.length)} running` : "");
  setText(byId("filtered"), shown.length < jobs.length ? `${plural(shown.length, "job")} shown` : "");
  byId("sort").value = query.get("sort") ?? "";
  keyed(byId("jobs"), shown, (job) => job.id, createRow, updateRow);
  for (const column of byId("columns").children) {
    const { name } = column.dataset;
    column.setAttribute("aria-sort", query.get("sort") === name ? "ascending"
      : query.get("sort") === `-${name}` ? "descending" : "none");
  }
}

function fits(job) {
  const wanted = byId("filter-text").value.trim().toLowerCase();
  const status = byId("filter-status").value;
  const texts = [job.name, ...Object.entries(job.labels).flatMap(([name, value]) => [`${name}: ${value}`, `${name}=${value}`])];
  return (!status || job.status.state === status) && (!wanted || texts.some((text) => text.toLowerCase().includes(wanted)));
}

function sorted(found) {
  const sort = query.get("sort") ?? "";
  const name = sort.replace(/^-/, "");
  const valueOf = name === "Name" ? (job) => job.name : COLUMNS.find(([column]) => column === name)?.[2];
  if (!valueOf) return found;
  const way = sort.startsWith("-") ? -1 : 1;
  // Unknown values come last in either order.
  return found.toSorted((one, other) => {
    const [left, right] = [valueOf(one), valueOf(other)];
    if (left == null || right == null) return (left == null) - (right == null);
    return way * (left < right ? -1 : left > right ? 1 : 0);
  });
}

function sortBy(order) {
  setQuery("sort", order);
  show();
}

function heading(name, kind) {
  const sort = () => sortBy(query.get("sort") === name ? `-${name}` : name);
  return element("th", { scope: "col", role: "columnheader", class: kind, dataset: { name } },
    element("button", { type: "button", class: "sort", onclick: sort }, name));
}

function setQuery(name, value) {
  if (value) query.set(name, value);
  else query.delete(name);
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text && `?${text}`));
}

function createRow(job) {
  const name = element("th", { scope: "row", role: "rowheader" },
    element("a", { href: `/ui/jobs/${encodeURIComponent(job.id)}/overview` }, job.name), element("div", { class: "labels" }));
  const cells = COLUMNS.map(([column, kind]) =>
    element("td", { role: "cell", dataset: { column }, class: kind },
      ...(column === "Status" ? [element("span", { class: "pill" }), element("small", { class: "trouble" })] : [])));
  return element("tr", { role: "row" }, name, ...cells);
}

function updateRow(row, job) {
  const [name, ...cells] = row.children;
  setText(name.firstElementChild, job.name);
  setChildren(name.lastElementChild,
    ...Object.entries(job.labels).map(([label, value]) => element("span", {}, `${label}: ${value}`)));
  COLUMNS.forEach(([, , , shown], index) => {
    const text = shown(job, cells[index]);
    if (text !== undefined) setText(cells[index], text);
  });
}

/** A running job may keep failing, wait for a system that does not answer, or not keep up. */
function showStatus(job, cell) {
  const { state, failure, health } = job.status;
  const [shown, trouble] = cell.children;
  setPill(shown, state);
  const [worst] = health.reasons;
  const said = failure?.message ?? (worst && `Health ${number(health.score)}: ${worst.message}`);
  const sinceMs = sleepOf(job)?.since_ms;
  trouble.className = said ? "trouble" : "soft";
  setText(trouble, said ?? (sinceMs ? `since ${time(sinceMs)}` : ""));
  trouble.title = trouble.textContent;
}

function showRates({ metrics: figures }, cell) {
  showTwoLines(cell, rate(figures.input_rate), figures.processed_rate === null ? "" : `could process ${rate(figures.processed_rate)}`);
}

function showWaiting(job, cell) {
  const { lag_records: records, lag_records_at_ms: atMs } = job.metrics;
  showTwoLines(cell, number(records), isLagOld(job) ? `as of ${time(atMs)}` : "");
}

function showCheckpoint({ status: { latest_checkpoint: latest } }, cell) {
  showTwoLines(cell, since(latest?.completed_at_ms),
    latest ? `in ${duration(latest.end_to_end_duration)}, wrote ${bytes(latest.checkpointed_size)}` : "");
}

function showTwoLines(cell, first, second) {
  setChildren(cell, element("span", {}, first, second ? element("small", { class: "soft why" }, second) : ""));
}

// --- a new job -------------------------------------------------------------------------------------------------------

const dialog = byId("new-job");
/** The name that the chosen file gave the job. */
let suggested = "";
/** The max parallelism of a job that names none. */
const KEY_GROUPS = 128;
/** Labels stand in one line, with commas between. */
const labelLines = (text) => text.replaceAll(",", "\n");
showFieldProblems(byId("new-job-form"), {
  program: (name) => (!name || /\.(py|zip)$/i.test(name) ? "" : "A program is a .py or a .zip file."),
  "job-parameters": problemOfLines,
  "job-labels": (text) => problemOfLines(labelLines(text)),
});
byId("job-max").addEventListener("input", () => {
  const { validity, value } = byId("job-max");
  byId("job-parallelism").max = validity.valid && value ? value : KEY_GROUPS;
  byId("job-parallelism").dispatchEvent(new Event("input", { bubbles: true }));
});
byId("new").addEventListener("click", () => dialog.showModal());
// By itself the browser shows only the line of a text area that is typed in, and the buttons may cover the rest.
dialog.addEventListener("focusin", ({ target }) => {
  if (target.matches("textarea")) target.scrollIntoView({ block: "nearest" });
});
byId("new-job-close").addEventListener("click", () => dialog.close());
byId("new-job-form").addEventListener("input", () => setText(byId("new-job-refusal"), ""));
byId("program").addEventListener("change", () => {
  const [file] = byId("program").files;
  const name = byId("job-name");
  // Another file gives another name, unless the user has written one.
  if (!file || (name.value && name.value !== suggested)) return;
  suggested = name.value = file.name.replace(/\.\w+$/, "").replaceAll("_", "-");
  name.dispatchEvent(new Event("input", { bubbles: true }));
});
byId("new-job-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = byId("new-job-create");
  setRefused(button, "The program is being uploaded.");
  try {
    const job = await createJob();
    location.assign(`/ui/jobs/${encodeURIComponent(job.id)}/overview`);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    setText(byId("new-job-refusal"), error.text);
  }
  setRefused(button);
});

async function createJob() {
  const artifact = await upload(byId("program").files[0]);
  const most = byId("job-max").valueAsNumber;
  const job = await post("/v1/jobs", {
    name: byId("job-name").value,
    labels: parametersOf(labelLines(byId("job-labels").value)),
    spec: {
      artifact_id: artifact.id,
      parallelism: byId("job-parallelism").valueAsNumber,
      parameters: parametersOf(byId("job-parameters").value),
      ...(Number.isNaN(most) ? {} : { max_parallelism: most }),
    },
  });
  if (byId("job-start").checked) await post(`/v1/jobs/${job.id}/start`);
  return job;
}
