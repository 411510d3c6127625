// The stored specification of a job.

import { get } from "../api.js";
import { byId, copyable, definitions, element, row, setChildren, when } from "../dom.js";
import { duration, NONE, number } from "../format.js";
import { jobPage } from "../job_page.js";

/** The names of artifacts by id; read once. @type {Map<string, string> | null} */
let libraries = null;

jobPage(async () => {
  libraries ??= new Map((await get("/v1/artifacts?limit=1000")).artifacts.map((one) => [one.id, `${one.name}, version ${number(one.version)}`]));
}, (job) => {
  const checkpoints = job.spec.checkpoints;
  setChildren(byId("configuration"),
    panel("Program", [
      ["Artifact", job.status.artifact_name, `version ${number(job.status.artifact_version)}`],
      ["Parallelism", number(job.spec.parallelism)],
      ["Max parallelism", number(job.spec.max_parallelism), "the number of key groups; it never changes"],
      ["Hash of keys", job.spec.hash_id],
      ["Minimum time between batches", job.spec.batch_interval_ms === null ? "set by the program" : duration(job.spec.batch_interval_ms)],
      ["After a failure", restartOf(job.status.attempt?.metrics?.restart ?? job.spec.restart)],
      ["Created", when(job.created_at_ms)],
      ["Store", copyable(job.status.store_url)],
    ]),
    panel("Checkpoints", [
      ["Interval", duration(checkpoints.interval_ms)],
      ["Minimum pause between two", duration(checkpoints.min_pause_ms)],
      ["Timeout", duration(checkpoints.timeout_ms)],
      ["Retained", number(checkpoints.retained_count)],
      ["Failures tolerated in a row", number(checkpoints.tolerable_failed_checkpoints)],
      ["Longest outage of the store", duration(checkpoints.store_outage_max_ms)],
    ]),
    table("Parameters", Object.entries(job.spec.parameters).map(([name, value]) =>
      [name, typeof value === "string" ? value : `the secret ${value.secret}`]), "This job has no parameters."),
    table("Libraries", job.spec.libraries.map((one) => [libraries.get(one) ?? one, one]), "This job brings no libraries of its own."),
    table("Spark settings", Object.entries(job.spec.spark_conf), "Only the platform's own."),
    table("Secrets", (job.spec.secrets ?? []).map((name) => [name, "its value is never shown"]), "This job gets no secrets."));
});

function restartOf(strategy) {
  if (!strategy) return "restarted, after growing pauses";
  return [strategy.type, strategy.attempts && `${number(strategy.attempts)} attempts`,
    strategy.delay_ms && `after ${duration(strategy.delay_ms)}`].filter(Boolean).join(", ") || NONE;
}

function panel(title, pairs) {
  return section(title, element("dl", { class: "definitions wide" }, ...definitions(pairs)));
}

function table(title, rows, none) {
  return section(title, rows.length
    ? element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title },
      element("table", { class: "pairs" }, element("tbody", {}, ...rows.map(([name, value]) => row([name, [value, "mono"]])))))
    : element("p", { class: "soft" }, none));
}

function section(title, content) {
  const id = `head-${title.replaceAll(" ", "-").toLowerCase()}`;
  return element("section", { class: "panel", "aria-labelledby": id },
    element("div", { class: "panel-head" }, element("h2", { id }, title)), content);
}
