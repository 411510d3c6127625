// One checkpoint: what it is, and its parts by operator and subtask.

import { ApiError, get } from "../api.js";
import { byId, copyable, definitions, element, pill, row, setChildren, setText, since, when } from "../dom.js";
import { bytes, duration, NONE, number, plural } from "../format.js";
import { jobPage, path } from "../job_page.js";

const id = byId("checkpoint").dataset.checkpoint;

jobPage(() => get(`${path}/checkpoints/${id}`).catch(missing), (job, one) => {
  setText(byId("checkpoint-head"), one?.is_savepoint ? `Savepoint ${id}` : `Checkpoint ${id}`);
  if (!one) {
    setChildren(byId("checkpoint-status"), "There is no such checkpoint. The oldest ones are forgotten.");
    return;
  }
  setChildren(byId("checkpoint-status"), pill(one.status));
  byId("checkpoint-failure").hidden = !one.failure_message;
  setChildren(byId("checkpoint-failure"), one.failure_message ?? "");
  showFacts(one);
  setChildren(byId("by-operator"), ...one.operators.map(operatorPanel));
});

function missing(error) {
  if (error instanceof ApiError && error.code === "CHECKPOINT_NOT_FOUND") return null;
  throw error;
}

function showFacts(one) {
  setChildren(byId("facts"), ...definitions([
    ["Triggered", when(one.trigger_timestamp), since(one.trigger_timestamp)],
    ["Took", duration(one.end_to_end_duration), `${number(one.num_acknowledged_subtasks)} of `
      + `${plural(one.num_subtasks, "subtask")} acknowledged`],
    ["Full size", bytes(one.state_size), `wrote ${bytes(one.checkpointed_size)}`],
    ["State after batch", number(one.batch_id), `of attempt ${number(one.attempt)}`],
    ["Records since the previous one", number(one.processed_data)],
    ["Location", copyable(one.external_path)],
  ]));
}

const COLUMNS = [
  ["Status", (one) => pill(one.status)],
  ["Key groups", (one) => `${one.key_group_start}–${one.key_group_end}`],
  ["Took", (one) => duration(one.end_to_end_duration), "number"],
  ["Waited to start", (one) => duration(one.start_delay), "number"],
  ["Stopped (sync)", (one) => duration(one.checkpoint.sync), "number"],
  ["Uploaded (async)", (one) => duration(one.checkpoint.async), "number"],
  ["Increment", (one) => bytes(one.checkpointed_size), "number"],
  ["Full size", (one) => bytes(one.state_size), "number"],
  ["Entries", (one) => number(one.entries), "number"],
  ["Files", (one) => number(one.files), "number"],
];

/** The indexes of subtasks that took conspicuously long: above 1.5 times the median, and the slowest twentieth. */
export function stragglersOf(durations) {
  const ordered = durations.toSorted((one, other) => one - other);
  if (ordered.length < 2) return [];
  const at = (share) => ordered[Math.min(ordered.length - 1, Math.floor(share * ordered.length))];
  const least = Math.max(1.5 * at(0.5), at(0.95));
  return durations.flatMap((took, index) => (took >= least && took > 1.5 * at(0.5) ? [index] : []));
}

function operatorPanel(operator) {
  const title = `operator-${operator.uid}`.replaceAll(/[^\w-]/g, "_");
  const slow = new Set(stragglersOf(operator.subtasks.map((one) => one.end_to_end_duration)));
  const summary = operator.summary;
  const spread = (range, shown) => (range ? `${shown(range.min)} · ${shown(range.avg)} · ${shown(range.max)}` : NONE);
  return element("section", { class: "panel", "aria-labelledby": title },
    element("div", { class: "panel-head" },
      element("h2", { id: title, class: "mono" }, operator.uid),
      element("span", { class: "soft" }, `${number(operator.num_acknowledged_subtasks)} of `
        + `${number(operator.num_subtasks)} acknowledged in ${duration(operator.end_to_end_duration)}, `
        + `${bytes(operator.checkpointed_size)} of ${bytes(operator.state_size)}`)),
    element("dl", { class: "definitions spreads" }, ...definitions([
      ["Stopped: least · average · most", spread(summary?.checkpoint_duration.sync, duration)],
      ["Uploaded: least · average · most", spread(summary?.checkpoint_duration.async, duration)],
      ["Full size: least · average · most", spread(summary?.state_size, bytes)],
    ])),
    element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Subtasks of ${operator.uid}` },
      element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Subtask"),
          ...COLUMNS.map(([name, , kind]) => element("th", { scope: "col", class: kind }, name)))),
        element("tbody", {}, ...operator.subtasks.map((one, index) => row([
          element("span", {}, number(one.index), slow.has(index) ? element("span", { class: "tag" }, "straggler") : ""),
          ...COLUMNS.map(([, shown, kind]) => [shown(one), kind]),
        ], slow.has(index) ? { class: "straggler" } : {}))))));
}
