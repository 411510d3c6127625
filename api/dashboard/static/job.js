// The page of one job: reads the API every second and updates the parts of the page.

import { Actions } from "./actions.js";
import { ApiError, get } from "./api.js";
import { Checkpoints } from "./checkpoints.js";
import { byId, element, definitions, keyed, setChildren, setPill, setText, words } from "./dom.js";
import { ago, bytes, duration, number, percent, rate, time, NONE } from "./format.js";
import { poll } from "./poll.js";
import { Rescale } from "./rescale.js";

const EVENTS_SHOWN = 20;
const NOT_STARTED = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);

const path = `/jobs/${encodeURIComponent(byId("job").dataset.job)}`;
const refresher = { now: () => {} };
const checkpoints = new Checkpoints(path, () => refresher.now());
const rescale = new Rescale(path, () => refresher.now());
const actions = new Actions(path, () => refresher.now());

refresher.now = poll(async () => {
  const [job, statistics, rescales, happened] = await Promise.all([
    get(path), get(checkpoints.statisticsPath), get(`${path}/rescales`), get(`${path}/events?limit=${EVENTS_SHOWN}`),
    actions.refresh(), checkpoints.refreshDetails(),
  ]).catch(explainMissing);
  showJob(job, statistics.latest.completed);
  showOperators(job.attempt?.metrics?.operators ?? []);
  actions.show(job);
  rescale.show(job, rescales.rescales[0]);
  checkpoints.show(job, statistics);
  showEvents(happened.events);
  byId("body").hidden = false;
}).now;

function explainMissing(error) {
  if (error instanceof ApiError && error.code === "JOB_NOT_FOUND") {
    setText(byId("name"), "There is no such job");
    byId("body").hidden = true;
    byId("actions").hidden = true;
    byId("status").hidden = true;
  }
  throw error;
}

function showJob(job, checkpoint) {
  document.title = `${job.name} · Keyscale`;
  setText(byId("name"), job.name);
  setPill(byId("status"), job.status);
  showFailure(job);
  showHealth(job.health);
  const attempt = job.attempt;
  const metrics = attempt?.metrics;
  const up = !NOT_STARTED.has(job.status) && job.started_at_ms !== null;
  setChildren(byId("overview"), ...definitions([
    ["Attempt", attempt ? number(attempt.number) : NONE, attempt && describe(attempt)],
    ["Parallelism", number(job.parallelism), `of at most ${number(job.max_parallelism)}`],
    ["Last commit", ago(attempt?.last_commit_at_ms),
      attempt?.last_commit_batch_id != null ? `batch ${number(attempt.last_commit_batch_id)}` : null],
    ["Input rate", up ? rate(metrics?.input_records_per_second) : NONE,
      metrics && `${number(metrics.input_records)} records in this attempt`],
    ["Processed rate", up ? rate(metrics?.processed_records_per_second) : NONE,
      metrics && `busy ${percent(metrics.busy_ratio)}`],
    ["Backlog", up && metrics?.pending_records != null ? number(metrics.pending_records) : NONE,
      "records behind the sources"],
    ["Batch duration", up ? duration(metrics?.batch_duration_ms) : NONE,
      metrics && `${number(metrics.batches)} batches; plan ${duration(metrics.batch_plan_ms)}, `
        + `append ${duration(metrics.batch_append_ms)}, publish ${duration(metrics.batch_publish_ms)}`],
    ["State", bytes(metrics?.state_bytes || checkpoint?.state_size),
      metrics?.state_bytes || !checkpoint ? null : `at checkpoint #${checkpoint.id}`],
    ["Clean-up", up ? ago(metrics?.clean_up?.last_at_ms) : NONE,
      metrics?.clean_up && `${number(metrics.clean_up.deleted_objects)} objects deleted, `
        + bytes(metrics.clean_up.deleted_bytes)],
    ["Uptime", up ? duration(Math.floor((Date.now() - job.started_at_ms) / 1000) * 1000) : NONE,
      job.restarts ? `${number(job.restarts)} restart${job.restarts === 1 ? "" : "s"}` : "no restart"],
    ["Artifact", job.artifact_name, `version ${job.artifact_version}`],
  ]));
}

const describe = (attempt) =>
  words(attempt.cause) + (attempt.driver_state ? `, driver ${attempt.driver_state.toLowerCase()}` : "");

const largestKeyGroup = ({ largest_key_group: group, largest_key_group_records: records, read_records: all }) =>
  group == null || !all ? NONE : `${number(records)} (${percent(records / all)})`;

// One row per subtask; an operator's own figures are in the row of its first subtask.
function showOperators(operators) {
  byId("no-operators").hidden = operators.length > 0;
  byId("operators-table").hidden = operators.length === 0;
  const rows = operators.flatMap((operator) => operator.subtasks.map((subtask) => ({ operator, subtask })));
  setChildren(byId("operators"), ...rows.map(({ operator, subtask }) => {
    const first = subtask.index === 0;
    const rowspan = operator.subtasks.length;
    return element("tr", {},
      first ? element("th", { scope: "rowgroup", rowspan, class: "mono" }, operator.uid) : null,
      element("td", { class: "number" }, number(subtask.index)),
      element("td", { class: "number" }, number(subtask.read_records)),
      element("td", { class: "number" }, number(subtask.write_records)),
      element("td", { class: "number" }, largestKeyGroup(subtask)),
      element("td", { class: "number" }, percent(subtask.busy_ratio)),
      element("td", { class: "number" }, duration(subtask.processor_ms)),
      element("td", { class: "number nowrap" },
        [subtask.input_ms, subtask.output_ms, subtask.store_ms].map(duration).join(" / ")),
      element("td", { class: "number" }, bytes(subtask.state_bytes)),
      first ? element("td", { class: "number", rowspan },
        operator.watermark_lag_ms == null ? NONE : duration(operator.watermark_lag_ms)) : null,
      first ? element("td", { class: "number", rowspan },
        operator.event_time_lag_ms == null ? NONE : duration(operator.event_time_lag_ms)) : null,
      first ? element("td", { class: "number", rowspan }, number(operator.late_records)) : null);
  }));
}

function showFailure(job) {
  const box = byId("failure");
  box.hidden = !job.failure;
  if (!job.failure) return;
  const { code, message, traceback, operator_uid: uid, subtask, advice } = job.failure;
  const where = [uid && `operator ${uid}`, subtask != null && `subtask ${subtask}`].filter(Boolean).join(", ");
  setChildren(box,
    element("strong", {}, job.status === "FAILED" ? "The job failed. " : "The job had to restart, and no batch has been committed since. "),
    element("span", { class: "said" }, message), " ", element("code", {}, code), where ? ` (${where})` : "", advice ? ` ${advice}` : "",
    traceback
      ? element("details", {}, element("summary", {}, "Traceback"), element("pre", { tabindex: 0 }, traceback))
      : "");
}

function showHealth(items) {
  const list = byId("health");
  list.hidden = items.length === 0;
  setChildren(list, ...items.map(({ code, message, since_ms: since, advice }) =>
    element("li", {}, `Since ${time(since)}: ${message} `, element("code", {}, code), advice ? ` ${advice}` : "")));
}

function showEvents(events) {
  byId("no-events").hidden = events.length > 0;
  keyed(byId("events"), events, (event) => event.id,
    (event) => element("li", {},
      element("time", { class: "soft nowrap", datetime: new Date(event.at_ms).toISOString() }, time(event.at_ms)),
      element("strong", {}, words(event.kind)),
      element("span", {}, event.message)),
    () => {});
}
