// A job's checkpoints: the latest of each kind, duration and size over time, history, summary and configuration.

import { ApiError, get, post } from "../api.js";
import { drawChart } from "../charts.js";
import {
  actionButton, byId, copyButton, definitions, element, pill, row, setChildren, setRefused, setText, since, tell, when, words,
} from "../dom.js";
import { bytes, duration, NONE, number } from "../format.js";
import { jobPage, path, tabPath } from "../job_page.js";
import { isChanging, takesOperations } from "../job_status.js";
import { isFirstPage, pageQuery, showPages } from "../paging.js";

const PAGE = 20;

const page = jobPage(
  () => Promise.all([get(`${path}/checkpoints?${pageQuery(PAGE)}`), get(`${path}/checkpoints/config`)]),
  (job, [statistics, config], mayOperate) => {
    const { counts, latest, history, summary, next } = statistics;
    setText(byId("counts"), `${number(counts.completed)} completed, ${number(counts.failed)} failed, `
      + `${number(counts.in_progress)} in progress, ${number(counts.restored)} restored`);
    take.hidden = !mayOperate;
    setRefused(take, isChanging(job) ? "A change of this job is in progress."
      : takesOperations(job) ? "" : "Only a running job can take a checkpoint.");
    showLatest(latest);
    showHistory(history);
    setText(byId("history-note"), isFirstPage() ? "Newest first" : "Older checkpoints");
    showPages(next);
    showSummary(summary, counts);
    showConfig(config);
    showCharts(history);
  }, ["checkpoints"]);
const take = actionButton("Take a checkpoint", takeCheckpoint);
byId("checkpoint-actions").append(take);

async function takeCheckpoint() {
  try {
    const accepted = await post(`${path}/checkpoint`);
    tell("Checkpoint: accepted.");
    page.follow("Checkpoint", accepted.id);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`Checkpoint: ${error.text}`, "bad");
  }
  page.now();
}

const linkTo = (id) => element("a", { href: tabPath(`checkpoints/${id}`) }, `#${id}`);

function showLatest({ completed, failed, savepoint, restored }) {
  const entry = (one, atMs, small) => (one ? [element("span", {}, linkTo(one.id), ", ", since(atMs)), small] : [NONE]);
  setChildren(byId("latest"), ...definitions([
    ["Latest completed", ...entry(completed, completed?.latest_ack_timestamp,
      completed && `wrote ${bytes(completed.checkpointed_size)} in ${duration(completed.end_to_end_duration)}, of ${bytes(completed.state_size)}`)],
    ["Latest failed", ...entry(failed, failed?.failure_timestamp, failed?.failure_message)],
    ["Latest savepoint", ...entry(savepoint, savepoint?.latest_ack_timestamp, savepoint && copyButton(savepoint.external_path))],
    ["Latest restore", ...(restored?.id === 0
      ? [since(restored.restore_timestamp), element("span", { title: restored.external_path },
        `from a ${restored.is_savepoint ? "savepoint" : "checkpoint"} that is not in this job's history`)]
      : entry(restored, restored?.restore_timestamp, restored && (restored.is_savepoint ? "from a savepoint" : "from a checkpoint")))],
  ]));
}

function showHistory(history) {
  byId("no-checkpoints").hidden = history.length > 0;
  setChildren(byId("history"), ...history.map((one) => row([
    linkTo(one.id),
    element("span", {}, pill(one.status), one.is_savepoint ? element("span", { class: "soft" },
      one.owner === "PLATFORM" ? " savepoint of a change" : " savepoint") : ""),
    [when(one.trigger_timestamp), "nowrap"],
    [duration(one.end_to_end_duration), "number"],
    [bytes(one.checkpointed_size), "number"],
    [bytes(one.state_size), "number"],
    [`${number(one.num_acknowledged_subtasks)} of ${number(one.num_subtasks)}`, "number"],
    [number(one.processed_data), "number"],
  ])));
}

function showSummary(summary, counts) {
  const rows = [
    ["Duration", summary.end_to_end_duration, duration],
    ["Increment", summary.checkpointed_size, bytes],
    ["Full size", summary.state_size, bytes],
    ["Records since the previous one", summary.processed_data, number],
  ];
  setChildren(byId("summary"), ...rows.map(([name, spread, shown]) => row([name,
    ...["min", "avg", "p50", "p90", "p95", "p99", "p999", "max"].map((key) =>
      [counts.completed ? shown(spread[key]) : NONE, "number"])])));
}

function showConfig(config) {
  setChildren(byId("config"), ...definitions([
    ["Mode", words(config.mode)],
    ["Interval", duration(config.interval)],
    ["Least pause between two", duration(config.min_pause)],
    ["Timeout", duration(config.timeout)],
    ["At the same time", number(config.max_concurrent)],
    ["Retained", number(config.retained_count)],
    ["Failures tolerated in a row", number(config.tolerable_failed_checkpoints)],
    ["State backend", config.state_backend],
    ["Storage", element("code", {}, config.checkpoint_storage)],
    ["Changelog", config.state_changelog_enabled ? "on" : "off"],
    ["After a cancel", config.externalization.delete_on_cancellation ? "deleted" : "kept"],
  ]));
}

function showCharts(history) {
  const drawn = history.filter((one) => one.status !== "IN_PROGRESS").toReversed();
  byId("no-charts").hidden = drawn.length > 0;
  if (!drawn.length) return;
  const line = (name, value) => ({
    name,
    points: drawn.map((one) => [one.trigger_timestamp, one.status === "FAILED" ? null : value(one)]),
    mode: "lines+markers",
    symbols: drawn.map((one) => (one.is_savepoint ? "circle-open" : "circle")),
  });
  const annotations = drawn.filter((one) => one.status === "FAILED")
    .map((one) => ({ at_ms: one.trigger_timestamp, text: `#${one.id} failed`, tone: "bad" }));
  drawChart("Duration", { kind: "duration", lines: [line("Duration", (one) => one.end_to_end_duration)], annotations });
  drawChart("Full size", { kind: "bytes", lines: [line("Full size", (one) => one.state_size)], annotations });
  drawChart("Increment", { kind: "bytes", lines: [line("Increment", (one) => one.checkpointed_size)], annotations });
}
