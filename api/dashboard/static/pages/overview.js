// A job's overview: what matters now, the operators, and the figures over time.

import { byId, element, definitions, setChildren, since } from "../dom.js";
import { bytes, duration, NONE, number, percent, plural, rate } from "../format.js";
import { get } from "../api.js";
import { jobPage, path, tabPath } from "../job_page.js";

const ENDED = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);

jobPage(() => get(`${path}/checkpoints?limit=1`), (job, statistics) => {
  showFigures(job, statistics.latest.completed);
  const operators = job.attempt?.metrics?.operators ?? [];
  showGraph(operators);
  showSubtasks(operators);
});

function showFigures(job, checkpoint) {
  const metrics = job.attempt?.metrics;
  const up = !ENDED.has(job.status) && job.started_at_ms !== null;
  const lags = (metrics?.operators ?? []).map((one) => one.event_time_lag_ms).filter((lag) => lag !== null);
  setChildren(byId("figures"), ...definitions([
    ["Input", up ? rate(metrics?.input_records_per_second) : NONE,
      metrics && `processes ${rate(metrics.processed_records_per_second)} while busy, ${percent(metrics.busy_ratio)} of the time`],
    ["Records waiting", up ? number(metrics?.pending_records) : NONE,
      metrics && metrics.pending_records === null ? "its sources do not say" : "not read from the sources yet"],
    ["Behind events", up && lags.length ? duration(Math.max(...lags)) : NONE,
      lags.length ? "from an event to its result" : "no event time"],
    ["State", bytes(checkpoint?.state_size), checkpoint ? element("span", {}, "at checkpoint ",
      element("a", { href: tabPath(`checkpoints/${checkpoint.id}`) }, `#${checkpoint.id}`)) : "no checkpoint yet"],
    ["Last checkpoint", since(checkpoint?.latest_ack_timestamp),
      checkpoint && `took ${duration(checkpoint.end_to_end_duration)}, wrote ${bytes(checkpoint.checkpointed_size)}`],
    ["Parallelism", number(job.parallelism), element("a", { href: tabPath("rescale") }, `up to ${number(job.max_parallelism)}`)],
    ["Uptime", up ? duration(Math.max(0, Math.floor((Date.now() - job.started_at_ms) / 1000) * 1000)) : NONE,
      job.restarts ? plural(job.restarts, "restart") : "no restart"],
    ["Last commit", since(job.attempt?.last_commit_at_ms),
      metrics && `a batch takes ${duration(metrics.batch_duration_ms)}`],
  ]));
}

function showGraph(operators) {
  byId("no-operators").hidden = operators.length > 0;
  setChildren(byId("graph"), ...operators.map((operator) => {
    const busy = Math.max(0, ...operator.subtasks.map((one) => one.busy_ratio));
    return element("li", { class: "node" },
      element("strong", { class: "mono" }, operator.uid),
      element("meter", { min: 0, max: 1, high: 0.8, value: busy.toFixed(2), "aria-label": `Busiest subtask ${percent(busy)}` }),
      element("dl", {}, ...definitions([
        ["Busiest subtask", percent(busy)],
        ["Read", number(operator.read_records)],
        ["Emitted", number(operator.write_records)],
        ["Behind events", operator.event_time_lag_ms == null ? NONE : duration(operator.event_time_lag_ms)],
        ["Late", number(operator.late_records)],
      ])));
  }));
}

const largestKeyGroup = ({ largest_key_group: group, largest_key_group_records: records, read_records: all }) =>
  group == null || !all ? NONE : `${number(records)} (${percent(records / all)})`;

// One row per subtask; the operator's name is in the row of its first one.
function showSubtasks(operators) {
  byId("no-subtasks").hidden = operators.length > 0;
  byId("operators-table").hidden = operators.length === 0;
  const number_ = (text) => element("td", { class: "number" }, text);
  setChildren(byId("operators"), ...operators.flatMap((operator) => operator.subtasks.map((subtask) =>
    element("tr", {},
      subtask.index === 0
        ? element("th", { scope: "rowgroup", rowspan: operator.subtasks.length, class: "mono" }, operator.uid) : null,
      ...[number(subtask.index), number(subtask.read_records), number(subtask.write_records), largestKeyGroup(subtask),
        percent(subtask.busy_ratio), duration(subtask.processor_ms), duration(subtask.input_ms),
        duration(subtask.output_ms), duration(subtask.store_ms), bytes(subtask.state_bytes)].map(number_)))));
}
