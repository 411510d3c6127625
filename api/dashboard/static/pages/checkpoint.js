// One checkpoint: what it is, whether it can be restored, its parts by operator and subtask, and what can be done with it.

import { ApiError, get, post } from "../api.js";
import {
  actionButton, byId, copyText, definitions, element, pill, row, setChildren, setRefused, setText, since, when,
} from "../dom.js";
import { bytes, duration, NONE, number, plural } from "../format.js";
import { jobPage, path, tabPath } from "../job_page.js";
import { changedParameters, parameterLines } from "../parameters.js";

const id = byId("checkpoint").dataset.checkpoint;
const ENDED = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);
let job = null;
let checkpoint = null;

jobPage(
  () => get(`${path}/checkpoints/${id}`).catch(missing),
  (shown, one, mayOperate) => {
    [job, checkpoint] = [shown, one];
    const noun = one?.is_savepoint ? "Savepoint" : "Checkpoint";
    setText(byId("checkpoint-head"), `${noun} ${id}`);
    if (!one) {
      setChildren(byId("checkpoint-status"), "There is no such checkpoint. The oldest ones are forgotten.");
      return;
    }
    setChildren(byId("checkpoint-status"), pill(one.status));
    byId("checkpoint-failure").hidden = !one.failure_message;
    setChildren(byId("checkpoint-failure"), one.failure_message ?? "");
    showFacts(one);
    showActions(one, mayOperate);
    setText(byId("restorable"), one.discarded && one.status === "COMPLETED" ? WHY_NOT.DISCARDED : WHY_NOT[one.status]);
    setChildren(byId("by-operator"), ...one.operators.map(operatorPanel));
  }, ["checkpoints"]);

function missing(error) {
  if (error instanceof ApiError && error.status === 404 && error.code !== "JOB_NOT_FOUND") return null;
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
  ]));
  byId("location").hidden = !one.external_path;
  setText(byId("location"), one.external_path ?? "");
}

// --- what can be done with it -----------------------------------------------------------------------------------------

const buttons = {
  copy: element("button", { type: "button", onclick: () => copyText(checkpoint.external_path) }, "Copy the location"),
  start: actionButton("Start a job from it…", openStart),
};
byId("checkpoint-actions").append(...Object.values(buttons));

function showActions(one, mayOperate) {
  const isThere = one.status === "COMPLETED" && !one.discarded;
  const gone = isThere ? "" : "Only a completed checkpoint whose files are still there can be used.";
  buttons.copy.hidden = !one.external_path;
  buttons.start.hidden = !mayOperate;
  setRefused(buttons.start, gone);
}

const WHY_NOT = {
  COMPLETED: "A job can start from it.",
  SUBSUMED: "No job can start from it: newer checkpoints have replaced it, and its files are deleted.",
  DISCARDED: "No job can start from it: its files were deleted.",
  FAILED: "No job can start from it: it was not completed.",
  IN_PROGRESS: "It is being taken.",
};

// --- a job that starts from it ------------------------------------------------------------------------------------------

const dialog = byId("start-from");

function openStart() {
  const ended = ENDED.has(job.status);
  byId("start-this").disabled = !ended;
  setText(byId("start-this-hint"), ended
    ? "It goes back to this state and these positions; what it has committed since is taken back from its state, and processed again."
    : "It runs. Stop it first, to take it back to here.");
  byId("clone-name").value = `${job.name}-from-${id}`;
  byId("clone-parallelism").value = job.parallelism;
  byId("clone-parallelism").max = job.max_parallelism;
  byId("clone-parameters").value = parameterLines(job.parameters);
  setText(byId("start-from-refusal"), "");
  showWhich();
  dialog.showModal();
}

function showWhich() {
  const isNew = new FormData(byId("start-from-form")).get("which") === "new";
  byId("clone-fields").hidden = !isNew;
  byId("clone-name").required = byId("clone-parallelism").required = isNew;
}

byId("start-from-form").addEventListener("change", showWhich);
byId("start-from-close").addEventListener("click", () => dialog.close());
byId("start-from-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const send = byId("start-from-send");
  setRefused(send, "The request is being sent.");
  try {
    const source = { restore_from: { checkpoint_id: Number(id) } };
    if (new FormData(byId("start-from-form")).get("which") === "this") {
      await post(`${path}/start`, source);
      location.assign(tabPath("overview"));
    } else {
      const parameters = changedParameters(job.parameters, byId("clone-parameters").value);
      const made = await post(`${path}/clone`, {
        ...source,
        name: byId("clone-name").value,
        parallelism: byId("clone-parallelism").valueAsNumber,
        ...(parameters ? { parameters } : {}),
        start: true,
      });
      location.assign(`/ui/jobs/${encodeURIComponent(made.id)}/overview`);
    }
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    setText(byId("start-from-refusal"), error.text);
  }
  setRefused(send);
});

// --- its parts ----------------------------------------------------------------------------------------------------------

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
