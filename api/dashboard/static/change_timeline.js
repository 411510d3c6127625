// A change of a job, phase by phase: a rescale, an upgrade or a roll back, as it runs or as it ended.

import { ApiError, post } from "./api.js";
import { ask } from "./ask.js";
import { actionButton, byId, definitions, element, keyed, pill, setChildren, setRefused, setText, tell, untell, when, words } from "./dom.js";
import { duration, NONE, number, percent, rate } from "./format.js";

/** The step of the control plane in each phase, from the click on. */
export const PHASES = {
  PREPARE: "Prepare",
  SWITCH: "Switch",
  REQUESTED: "Start the new driver",
  SAVEPOINT: "Savepoint",
  STOP: "End the old driver",
  RESTORE: "Restore",
  VERIFY: "Wait for a batch",
  ROLL_BACK: "Roll back",
};
/** The parts of a change's time, from its downtime breakdown. */
export const STEPS = {
  SAVEPOINT: "Savepoint",
  STOP: "Stop",
  TRIAL: "Failed driver",
  SUBMIT: "Submit",
  SESSION: "Spark session",
  RESTORE: "Restore",
  HANDOVER: "Handover",
  FIRST_BATCH: "First batch",
  CAUGHT_UP: "catching up",
};
const BEING_CANCELLED = "The change is being cancelled.";
const WAITS = "The change waits for the approval of another user.";
const OUTCOMES = {
  COMPLETED: "completed",
  CANCELLED: "was cancelled; the job runs as before",
  ROLLED_BACK: "was rolled back; the job runs as before",
  FAILED: "failed",
};

/** A change in a few words: Rescale 2 → 4, Upgrade to revision 3. */
export function changeTitle(change) {
  if (change.kind === "RESCALE") return `Rescale ${number(change.from_parallelism)} → ${number(change.to_parallelism)}`;
  return change.from_revision === change.to_revision
    ? `${words(change.kind)} of revision ${number(change.to_revision)}`
    : `${words(change.kind)} from revision ${number(change.from_revision)} to ${number(change.to_revision)}`;
}

/** Whether a change keeps its status. */
export const hasEnded = (change) => !["PENDING_APPROVAL", "IN_PROGRESS"].includes(change.status);

/** The state or the end of a change. */
export const changePill = (change) => pill(change.status);

const LIVE_PHASES = new Set(["PREPARE", "SWITCH", "VERIFY"]);

/** The phases that a change goes through as planned. */
const phasesOf = (change) => Object.keys(PHASES).filter((name) => (change.rescale_mode === "LIVE"
  ? LIVE_PHASES.has(name) : name === "VERIFY" || !LIVE_PHASES.has(name)));

/** The rows that show a change: each phase with its state, its start and its milliseconds so far. */
export function phaseRows(change, nowMs) {
  const inProgress = change.status === "IN_PROGRESS";
  const wasGivenUp = !inProgress && change.status !== "COMPLETED";
  const rows = change.phases.map((phase, index) => {
    const next = change.phases[index + 1]?.phase;
    const cut = phase.ended_at_ms === null && !inProgress;
    const isItsEnd = next === "ROLL_BACK" || (wasGivenUp && !next && phase.phase !== "ROLL_BACK");
    const state = cut || isItsEnd ? (change.status === "CANCELLED" || change.cancel_requested_at_ms ? "cancelled" : "failed")
      : phase.ended_at_ms === null ? "running" : "done";
    const soFar = cut ? null : Math.max(0, nowMs - phase.started_at_ms);
    return { phase: phase.phase, state, ms: phase.duration_ms ?? soFar, startMs: phase.started_at_ms };
  });
  const begun = new Set(rows.map((one) => one.phase));
  const moves = inProgress && !begun.has("ROLL_BACK");
  const waiting = moves ? phasesOf(change).filter((name) => name !== "ROLL_BACK" && !begun.has(name)) : [];
  return [...rows, ...waiting.map((phase) => ({ phase, state: "waiting", ms: null, startMs: null }))];
}

/** Shows a change in the panel of the template `change_timeline.html`. */
export function showChange(change) {
  const inProgress = change.status === "IN_PROGRESS";
  const waits = change.status === "PENDING_APPROVAL";
  const rows = phaseRows(change, Date.now());
  setChildren(byId("change-title"), `${changeTitle(change)} `, changePill(change));
  const summary = byId("change-summary");
  summary.classList.toggle("soft", inProgress || waits);
  setChildren(summary, ...(waits
    ? [`Requested by ${change.requested_by ?? NONE} at `, when(change.requested_at_ms), `. ${WAITS}`]
    : inProgress ? ["Requested at ", when(change.requested_at_ms), change.rescale_mode === "LIVE" ? ". The job continues." : ". The job continues until the savepoint.",
      " Each bar is as long as its phase.", ...(change.not_live ? [` A new driver takes over: ${change.not_live.message}.`] : []), ...waitText(change)]
    : [element("dl", { class: "definitions" }, ...definitions([
      ["Downtime", downtime(change), hasStopped(change) ? "from the last batch before until the job continues" : ""],
      ...(change.held_ms == null ? [] : [["Batches held", duration(change.held_ms), "during the switch"]]),
      ["Total time", duration(change.duration_ms), change.approved_by ? `from the approval by ${change.approved_by} to the end` : "from the click to the end"],
      ...(change.not_live ? [["New driver", change.not_live.message]] : []),
      ...(change.metrics_before ? [["Could process, before", rate(change.metrics_before.processed_rate), busyOf(change.metrics_before)]] : []),
      ...(change.metrics_after ? [["and after", rate(change.metrics_after.processed_rate), busyOf(change.metrics_after)]] : []),
      ["Ended", when(change.ended_at_ms)],
    ])), ...failureNotice(change)]));
  showTimeline(change, rows);
  announce(change, rows);
}

/** Why the present phase of a change waits, in words. */
const waitText = (change) => {
  const why = change.phases.at(-1)?.waits_for;
  return why ? [` It waits for the object store, and continues when the store answers: ${why.message}`] : [];
};

/** Whether a change has gone as far as to stop the job. */
const hasStopped = (change) => change.phases.some((one) => !["PREPARE", "REQUESTED"].includes(one.phase));

/** The downtime of a change that has ended, in words. */
export const downtime = (change) => (hasStopped(change) ? duration(change.downtime_ms) : "none");

const busyOf = (metrics) => (metrics?.busy_ratio == null ? "" : `${percent(metrics.busy_ratio)} busy`);

/** Shows the buttons that approve and cancel a change, while that is possible. */
export function showChoices(change, mayOperate, page) {
  if (change && change.status !== "IN_PROGRESS") untell(BEING_CANCELLED);
  const waits = mayOperate && change?.status === "PENDING_APPROVAL";
  const inProgress = mayOperate && change?.status === "IN_PROGRESS";
  setChildren(byId("change-actions"), ...(waits ? [approveButton(change, page)] : []),
    ...(waits || inProgress ? [cancelButton(change, page)] : []));
}

function approveButton(change, page) {
  return actionButton("Approve…", async () => {
    const agreed = await ask({
      title: `Approve: ${changeTitle(change)}?`,
      text: "The change begins now. If the job does not run with it, the job goes back automatically.",
      action: "Approve the change",
      keep: "Not now",
      danger: false,
    });
    if (agreed) await act(change, "approve", "Approve", page);
  });
}

async function act(change, action, label, page) {
  try {
    await post(`/v1/operations/${encodeURIComponent(change.id)}/${action}`);
    if (action === "cancel" && change.status === "IN_PROGRESS") tell(BEING_CANCELLED);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`${label}: ${error.text}`, "bad");
  }
  page.now();
}

function cancelButton(change, page) {
  const button = actionButton("Cancel it…", async () => {
    const agreed = await ask({
      title: `Cancel: ${changeTitle(change)}?`,
      text: change.status === "PENDING_APPROVAL" ? "Nothing has happened yet. The change can be requested again."
        : "The job continues as before the change: at once if it still runs, else from the savepoint of the change. "
        + "No record is lost. The change can be requested again.",
      action: "Cancel the change",
      keep: "Continue the change",
    });
    if (agreed) await act(change, "cancel", "Cancel", page);
  }, { class: "danger" });
  setRefused(button, change.cancel_requested_at_ms ? "It is being cancelled."
    : change.can_cancel ? "" : "It is too late: the change is nearly over, or already rolls back.");
  return button;
}

/** The bars of the phases on one axis of time, from the request to the end or to now. */
function showTimeline(change, rows) {
  const began = change.approved_at_ms ?? change.requested_at_ms;
  const lasted = Math.max(1, ...rows.map((one) => (one.startMs === null ? 0 : one.startMs - began + (one.ms ?? 0))));
  keyed(byId("phases"), rows, (one) => one.phase,
    (one) => element("li", {},
      element("span", {}, PHASES[one.phase] ?? one.phase, " ", element("span", { class: "visually-hidden" })),
      element("span", { class: "track", "aria-hidden": "true" }, element("span", { class: "bar-of-time" })),
      element("span", { class: "number" })),
    (node, one) => {
      node.dataset.state = one.state;
      const [label, track, took] = node.children;
      setText(label.lastElementChild, one.state);
      const bar = track.firstElementChild.style;
      bar.marginInlineStart = one.startMs === null ? "0" : `${(100 * (one.startMs - began)) / lasted}%`;
      bar.width = `${(100 * (one.ms ?? 0)) / lasted}%`;
      setText(took, one.ms === null ? "" : duration(one.ms));
    });
}

/** One short sentence per phase, for screen readers. */
function announce(change, rows) {
  const text = change.status === "PENDING_APPROVAL" ? `${changeTitle(change)}. ${WAITS}` : change.status === "IN_PROGRESS"
    ? `${changeTitle(change)}: ${PHASES[change.phase] ?? change.phase}`
    : `${changeTitle(change)} ${OUTCOMES[change.status]}. Downtime ${downtime(change)}.`;
  const spoken = byId("change-live");
  // A change that ended before the page was opened is not announced.
  const isNews = change.status === "IN_PROGRESS" || rows.some((one) => one.state === "running");
  if (spoken.textContent || isNews) setText(spoken, text);
}

/** How the job continued after a change that was given up. */
function wayBack(change) {
  const begun = new Set(change.phases.map((one) => one.phase));
  if (!hasStopped(change)) return "The job runs as before: the change had not stopped it.";
  if (!begun.has("ROLL_BACK")) return "The job runs as before: no savepoint was taken.";
  return begun.has("STOP") ? "The job runs as before, from the same savepoint." : "The job runs as before.";
}

function failureNotice(change) {
  const { failure, status } = change;
  if (status === "CANCELLED") return [element("div", { class: "notice" }, wayBack(change))];
  if (!failure) return [];
  const back = status === "ROLLED_BACK" ? `${wayBack(change)} ` : "";
  return [element("div", { class: "notice", "data-tone": "bad" }, back, element("span", { class: "said" }, failure.message),
    " ", element("code", {}, failure.code),
    failure.traceback ? element("details", {}, element("summary", {}, "Traceback"), element("pre", { tabindex: 0 }, failure.traceback)) : "")];
}

/** The downtime breakdown of a past change, as one bar; the times are in its text. */
export function shareBar(change) {
  if (!change.steps.length) return element("span", {}, downtime(change));
  const parts = change.steps.map((step) => [step.name, STEPS[step.name] ?? step.name, step.duration_ms]);
  const known = parts.filter(([, , ms]) => ms); // a step that took no time was done before
  const bar = element("span", { class: "shares", "aria-hidden": "true" }, ...known.filter(([name]) => name !== "CAUGHT_UP").map(([name, label, ms]) => {
    const part = element("span", { dataset: { part: name }, title: `${label}: ${duration(ms)}` });
    part.style.flexGrow = Math.max(ms, 1);
    return part;
  }));
  return element("span", {}, bar,
    element("small", { class: "soft" }, known.map(([name, label, ms]) => `${name === "CAUGHT_UP" ? "then " : ""}${label} ${duration(ms)}`).join(" · ")));
}
