// One checkpoint: what it is, whether it can be restored, its parts by operator and subtask, what it shares with another
// one, and what can be done with it.

import { ApiError, get, post, remove } from "../api.js";
import { ask } from "../ask.js";
import {
  actionButton, byId, copyText, definitions, element, pill, row, setChildren, setRefused, setText, since, tell, untell, when,
} from "../dom.js";
import { showFieldProblems } from "../field_problems.js";
import { bytes, duration, NONE, number, plural } from "../format.js";
import { jobPage, path, tabPath } from "../job_page.js";
import { ENDED } from "../job_status.js";
import { changedParameters, parameterLines, problemOfLines } from "../parameters.js";

const id = byId("checkpoint").dataset.checkpoint;
const VERIFYING_MS = 1000, BEING_READ = "Every file is being read. The result appears below.";
let job = null;
let checkpoint = null;

const page = jobPage(
  async () => {
    const here = `${path}/checkpoints/${id}`;
    const found = await Promise.all([get(here).catch(missing), get(`${here}/verification`).catch(missing)]);
    if (found[1]?.status === "IN_PROGRESS") setTimeout(() => page.now(), VERIFYING_MS);
    return found;
  },
  (shown, [one, verification], mayOperate) => {
    [job, checkpoint] = [shown, one];
    const noun = one?.is_savepoint ? "Savepoint" : "Checkpoint";
    setText(byId("checkpoint-head"), `${noun} ${id}`);
    if (!one) {
      setChildren(byId("checkpoint-status"), "Checkpoint not found. The history keeps only the latest checkpoints.");
      for (const button of Object.values(buttons)) button.hidden = true;
      return;
    }
    setChildren(byId("checkpoint-status"), pill(one.status));
    byId("checkpoint-failure").hidden = !one.failure_message;
    setChildren(byId("checkpoint-failure"), one.failure_message ?? "");
    showFacts(one);
    showActions(one, verification, mayOperate);
    showVerification(one, verification);
    setChildren(byId("by-operator"), ...one.operators.map(operatorPanel));
    byId("compare-panel").hidden = one.status === "IN_PROGRESS";
    byId("sql-panel").hidden = !mayOperate || one.status !== "COMPLETED";
    showComparison();
  }, ["checkpoints"]);

function missing(error) {
  const isNone = error.status === 422 || (error.status === 404 && error.code !== "JOB_NOT_FOUND");
  if (error instanceof ApiError && isNone) return null;
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
    ...(one.is_savepoint ? [["Owner", ...(one.owner === "PLATFORM"
      ? ["Platform", "taken for a change, and deleted when nothing needs it"] : ["User", "stays until a user deletes it"])]] : []),
  ]));
  byId("location").hidden = !one.external_path;
  setText(byId("location"), one.external_path ?? "");
}

// --- actions -----------------------------------------------------------------------------------------

const buttons = {
  copy: element("button", { type: "button", onclick: () => copyText(checkpoint.external_path) }, "Copy the location"),
  start: actionButton("Start a job from it…", openStart),
  keep: actionButton("Keep", () => attempt("Keep", keep)),
  verify: actionButton("Verify", () => attempt("Verify", verify)),
  remove: actionButton("Delete…", () => attempt("Delete", removeIt), { class: "danger" }),
};
byId("checkpoint-actions").append(...Object.values(buttons));

function isThere(one) {
  return one.status === "COMPLETED" && !one.discarded;
}

function showActions(one, verification, mayOperate) {
  const gone = isThere(one) ? "" : "Only a completed checkpoint with all its files can be used.";
  buttons.copy.hidden = !one.external_path;
  for (const button of [buttons.start, buttons.keep, buttons.verify, buttons.remove]) {
    button.hidden = !mayOperate;
    setRefused(button, gone);
  }
  buttons.keep.hidden ||= !one.is_savepoint || one.owner !== "PLATFORM";
  if (!gone && verification?.status === "IN_PROGRESS") setRefused(buttons.verify, "The verification is in progress.");
}

const WHY_NOT = {
  COMPLETED: "A job can start from it. Its files were not verified yet.",
  SUBSUMED: "No job can start from it: newer checkpoints have replaced it, and its files are deleted in the background.",
  DISCARDED: "No job can start from it: it was deleted. Its files are deleted later.",
  FAILED: "No job can start from it: it was not completed.",
  IN_PROGRESS: "It is being taken.",
};

function showVerification(one, found) {
  if (found && found.status !== "IN_PROGRESS") untell(BEING_READ);
  if (!isThere(one) || !found) {
    setChildren(byId("restorable"), WHY_NOT[isThere(one) || one.status !== "COMPLETED" ? one.status : "DISCARDED"]);
    return;
  }
  const { status, restorable, problems, problem_count: count } = found;
  const files = plural(found.files, "file");
  const [tone, ...said] = status === "IN_PROGRESS"
    ? ["calm", element("strong", {}, "Being verified: "), `${number(found.files_checked)} of ${files} so far.`]
    : restorable
      ? ["good", element("strong", {}, "A job can start from it. "), found.hashes
        ? `${files} (${bytes(found.bytes_read)}) were read, and have the right hashes. Verified `
        : `${files} are there, with the right sizes. Verified `, since(found.ended_at_ms), "."]
      : ["bad", element("strong", {}, restorable === false ? "No job can start from it. " : "It could not be verified. "),
        "Checked ", since(found.ended_at_ms), "."];
  const sources = !restorable ? ""
    : found.sources_checked ? "The sources still have the records after it."
      : `The sources were not asked for the records after it${found.sources_unchecked ? `: ${found.sources_unchecked}` : ""}.`;
  setChildren(byId("restorable"), element("div", { class: "notice", "data-tone": tone },
    ...said, sources ? element("div", {}, sources) : "", ...problems.map((text) => element("div", { class: "said" }, text)),
    count > problems.length ? element("div", {}, `and ${number(count - problems.length)} more`) : ""));
}

async function keep() {
  await post(`${path}/savepoints/${encodeURIComponent(checkpoint.savepoint_id)}/keep`);
  tell("The savepoint is yours. The platform does not delete it.", "good");
}

async function verify() {
  await post(`${path}/checkpoints/${id}/verify`, { hashes: true });
  tell(BEING_READ);
}

async function removeIt() {
  const plan = await remove(`${path}/checkpoints/${id}?dry_run=true`);
  const noun = checkpoint.is_savepoint ? "savepoint" : "checkpoint";
  if (!plan.allowed) {
    tell(`This ${noun} cannot be deleted: ${plan.reasons.join("; ")}.`, "bad");
    return;
  }
  const stays = plan.shared_bytes ? `; ${bytes(plan.shared_bytes)} stay, which other checkpoints need` : "";
  const agreed = await ask({
    title: `Delete ${noun} ${id}?`,
    text: `This frees ${bytes(plan.freed_bytes)} in ${plural(plan.freed_objects, "object")}, its list of files included${stays}. No job can start from it any `
      + `more. ${[...plan.consequences, "This cannot be undone."].join(" ")}`,
    action: `Delete the ${noun}`,
    keep: "Keep it",
  });
  if (!agreed) return;
  await remove(`${path}/checkpoints/${id}`);
  tell(`The ${noun} is deleted. Its files are deleted in the background.`, "good");
}

async function attempt(name, act) {
  try {
    await act();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`${name}: ${error.text}`, "bad");
  }
  page.now();
}

// --- a job that starts from it ------------------------------------------------------------------------------------------

const dialog = byId("start-from");
const forgetProblems = showFieldProblems(byId("start-from-form"), { "clone-parameters": problemOfLines });

function openStart() {
  const ended = ENDED.has(job.status.state);
  byId("start-this").disabled = !ended;
  setText(byId("start-this-hint"), ended
    ? "The job goes back to this state and these positions. Later records are processed again."
    : "Stop the job first, to take it back to this checkpoint.");
  byId("clone-name").value = `${job.name}-from-${id}`;
  byId("clone-parallelism").value = job.spec.parallelism;
  byId("clone-parallelism").max = job.spec.max_parallelism;
  byId("clone-parameters").value = parameterLines(job.spec.parameters);
  setText(byId("start-from-refusal"), "");
  forgetProblems();
  showWhich();
  dialog.showModal();
}

function showWhich() {
  const isNew = new FormData(byId("start-from-form")).get("which") === "new";
  byId("clone-fields").hidden = !isNew;
  byId("clone-name").required = byId("clone-parallelism").required = isNew;
}

byId("start-from-form").addEventListener("change", showWhich);
byId("start-from-form").addEventListener("input", () => setText(byId("start-from-refusal"), ""));
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
      const parameters = changedParameters(job.spec.parameters, byId("clone-parameters").value);
      const made = await post(`${path}/clone`, {
        ...source,
        name: byId("clone-name").value,
        spec: { parallelism: byId("clone-parallelism").valueAsNumber, ...(parameters ? { parameters } : {}) },
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

// --- SQL over the state -------------------------------------------------------------------------------------------------

byId("sql").addEventListener("submit", async (event) => {
  event.preventDefault();
  setRefused(byId("sql-run"), "The statement runs.");
  setText(byId("sql-note"), "The state is being read.");
  try {
    const found = await post(`${path}/checkpoints/${id}/sql`, { statement: byId("statement").value });
    drawRows(found);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("sql-scroll").hidden = true;
    setText(byId("sql-note"), error.text);
  } finally {
    setRefused(byId("sql-run"));
  }
});

function drawRows({ columns, rows, is_truncated: isTruncated }) {
  byId("sql-scroll").hidden = false;
  setText(byId("sql-note"), `${plural(rows.length, "row")}${isTruncated ? "; there are more" : ""}.`);
  setChildren(byId("sql-columns"), ...columns.map(({ name }) => element("th", { scope: "col" }, name)));
  setChildren(byId("sql-rows"), ...rows.map((values) => row(values.map((value) => [shownValue(value), "mono"]))));
}

const shownValue = (value) => (value === null ? NONE : typeof value === "object" ? JSON.stringify(value) : String(value));

// --- compared with another one ------------------------------------------------------------------------------------------

/** The number of the other checkpoint, from the address. */
const other = () => new URLSearchParams(location.search).get("with");
const COMPARE_NOTE = byId("compare-note").textContent;
let compared = null;
byId("with").value = other() ?? "";
showFieldProblems(byId("compare"), { with: (text) => (text === id ? "Choose a different checkpoint." : "") });

byId("compare").addEventListener("submit", (event) => {
  event.preventDefault();
  history.replaceState(null, "", `?with=${byId("with").valueAsNumber}`);
  showComparison();
});

// A comparison disappears when its number becomes invalid.
byId("with").addEventListener("input", () => {
  if (byId("with").validity.valid) return;
  compared = null;
  history.replaceState(null, "", location.pathname);
  byId("compare-scroll").hidden = true;
  setText(byId("compare-note"), COMPARE_NOTE);
});

/** Compares with the other checkpoint once: the content of two checkpoints does not change. */
async function showComparison() {
  const wanted = other();
  if (!wanted || compared === wanted) return;
  compared = wanted;
  try {
    const found = await get(`${path}/checkpoints/${encodeURIComponent(wanted)}/compare?to=${id}&limit=1000`);
    if (compared === wanted) drawComparison(found);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (compared !== wanted) return;
    if (error.isOutage) compared = null;
    byId("compare-scroll").hidden = true;
    setText(byId("compare-note"), error.text);
  }
}

function drawComparison({ from_checkpoint: from, to_checkpoint: to, operators, reason }) {
  byId("compare-scroll").hidden = false;
  const apartMs = Math.abs(to.trigger_timestamp - from.trigger_timestamp);
  setText(byId("compare-note"), reason ? `The files cannot be compared: ${reason}.`
    : `${duration(apartMs)} lie between them. A shared file has the same content in both. Entries are estimates.`);
  const columns = ["Operator", `Size at ${from.id}`, `Size at ${to.id}`, `Entries at ${from.id}`, `Entries at ${to.id}`, "Shared",
    `Only in ${from.id}`, `Only in ${to.id}`];
  setChildren(byId("compare-columns"), ...columns.map((name, index) =>
    element("th", { scope: "col", class: index ? "number" : null }, name)));
  const files = (size, count) => (count === null ? NONE : `${bytes(size)} in ${plural(count, "file")}`);
  setChildren(byId("compared"), ...operators.map((one) => row([[one.uid, "mono"], ...[
    bytes(one.from_state_size), bytes(one.to_state_size), number(one.from_entries), number(one.to_entries),
    files(one.shared_bytes, one.shared_files), files(one.only_from_bytes, one.only_from_files), files(one.only_to_bytes, one.only_to_files),
  ].map((text) => [text, "number"])])));
}

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
  ["Entries (estimated)", (one) => number(one.entries), "number"],
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
  const sharesFiles = operator.state_size < operator.subtasks.reduce((sum, one) => sum + one.state_size, 0);
  const spread = (range, shown) => (range ? `${shown(range.min)} · ${shown(range.avg)} · ${shown(range.max)}` : NONE);
  return element("section", { class: "panel", "aria-labelledby": title },
    element("div", { class: "panel-head" },
      element("h2", { id: title, class: "mono" }, operator.uid),
      element("span", { class: "soft" }, `${number(operator.num_acknowledged_subtasks)} of `
        + `${number(operator.num_subtasks)} acknowledged in ${duration(operator.end_to_end_duration)}, `
        + `full size ${bytes(operator.state_size)}, added ${bytes(operator.checkpointed_size)}`
        + (sharesFiles ? "; files that its subtasks share count once" : ""))),
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
