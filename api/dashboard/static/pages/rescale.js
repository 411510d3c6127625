// The rescale of a job: the plan of the chosen parallelism, one click, the phases as they run, and the past ones.

import { ApiError, get, post } from "../api.js";
import { byId, definitions, element, keyed, pill, row, setChildren, setRefused, setText, when } from "../dom.js";
import { bytes, duration, NONE, number, percent } from "../format.js";
import { jobPage, path } from "../job_page.js";
import { keyGroupRanges } from "../key_group_ranges.js";

const PHASES = {
  REQUESTED: "Start the new driver",
  SAVEPOINT: "Savepoint",
  STOP: "Stop",
  RESTORE: "Restore",
  VERIFY: "First batch",
  ROLL_BACK: "Roll back",
};
const OUTCOMES = {
  COMPLETED: "completed",
  ROLLED_BACK: "was rolled back; the job runs at its old parallelism",
  FAILED: "failed",
};
const STATES = { done: "done", running: "running", failed: "failed", waiting: "waiting" };
/** Above these numbers of segments there is no room for their numbers, for gaps, or for segments at all. */
const NUMBERED_MAX = 32, SPACED_MAX = 96, DRAWN_MAX = 512;
const LEDGER_MAX = 50, PLAN_AFTER_MS = 250;

const input = byId("parallelism"), slider = byId("slider"), button = byId("rescale");
let job = null;
let edited = false;
let chosen = Number(new URLSearchParams(location.search).get("to")) || null;
let sending = false;
let refusal = "";
let mayOperate = false;

const page = jobPage(() => get(`${path}/rescales?limit=${LEDGER_MAX}`), (shown, { rescales }, may) => {
  job = shown;
  mayOperate = may;
  const [latest] = rescales;
  input.max = job.max_parallelism;
  // A number that the user has chosen is kept; otherwise the field follows the job.
  if (!edited && !sending) setWanted(chosen ?? (latest?.status === "IN_PROGRESS" ? latest.to_parallelism : job.parallelism));
  showForm();
  if (latest) showProgress(latest);
  showLedger(rescales.filter((one) => one.status !== "IN_PROGRESS"));
});

// --- the form and the plan -------------------------------------------------------------------------------------------

input.addEventListener("input", () => {
  slider.value = positionOf(input.valueAsNumber);
  choose();
});
slider.addEventListener("input", () => {
  input.value = parallelismAt(Number(slider.value));
  choose();
});
byId("rescale-form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});

/** The slider is logarithmic, because 1 to 8 matters more than 121 to 128. */
function parallelismAt(position) {
  return Math.round(job.max_parallelism ** (position / Number(slider.max)));
}

function positionOf(parallelism) {
  if (!(parallelism >= 1) || job.max_parallelism < 2) return 0;
  return Math.round(Number(slider.max) * (Math.log(parallelism) / Math.log(job.max_parallelism)));
}

function setWanted(parallelism) {
  if (input.valueAsNumber === parallelism) return;
  input.value = parallelism;
  slider.value = positionOf(parallelism);
}

/** The chosen number is in the address, too. */
function choose() {
  edited = true;
  refusal = "";
  history.replaceState(null, "", input.validity.valid ? `?to=${input.valueAsNumber}` : location.pathname);
  showForm();
}

async function send() {
  if (sending) return;
  sending = true;
  refusal = "";
  showForm();
  try {
    await post(`${path}/rescale`, { parallelism: input.valueAsNumber });
    edited = false;
    chosen = null;
    history.replaceState(null, "", location.pathname);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    refusal = error.text;
  }
  sending = false;
  showForm();
  page.now();
}

/** Why the job cannot be rescaled as the form says, or an empty string. */
function whyNot() {
  if (!input.validity.valid) return `A whole number from 1 to ${number(job.max_parallelism)}, please.`;
  if (job.status !== "RUNNING") return "Only a running job can be rescaled.";
  if (sending) return "The request is being sent.";
  return input.valueAsNumber === job.parallelism ? "The job runs at this parallelism." : "";
}

function showForm() {
  if (!job) return;
  const reason = whyNot();
  button.hidden = !mayOperate;
  setRefused(button, reason);
  setText(button, reason ? "Rescale" : `Rescale to ${number(input.valueAsNumber)}`);
  const bounds = `From 1 to ${number(job.max_parallelism)}; now ${number(job.parallelism)}.`;
  const hint = byId("parallelism-hint");
  setText(hint, refusal || (reason && job.parallelism !== input.valueAsNumber ? `${bounds} ${reason}` : bounds));
  hint.classList.toggle("refused", Boolean(refusal) || !input.validity.valid);
  showRanges(input.validity.valid ? input.valueAsNumber : job.parallelism);
}

function showRanges(parallelism) {
  const isChange = parallelism !== job.parallelism;
  byId("ranges-now").hidden = byId("ranges-now-label").hidden = !isChange;
  if (isChange) showBar("ranges-now", "Now", job.parallelism);
  planSoon(isChange ? parallelism : null);
  showBar("ranges", isChange ? "Then" : "Now", parallelism);
}

function showBar(id, moment, parallelism) {
  const total = job.max_parallelism;
  const ranges = keyGroupRanges(total, parallelism);
  const sizes = ranges.map(([start, end]) => end - start + 1);
  const least = Math.min(...sizes), most = Math.max(...sizes);
  const each = least === most ? number(least) : `${number(least)} or ${number(most)}`;
  setText(byId(`${id}-label`), parallelism === 1
    ? `${moment}: 1 subtask owns all ${number(total)} key groups`
    : `${moment}: ${number(parallelism)} subtasks own ${each} of ${number(total)} key groups each`);
  drawRanges(byId(id), ranges);
}

function drawRanges(bar, ranges) {
  bar.hidden = ranges.length > DRAWN_MAX;
  bar.toggleAttribute("data-dense", ranges.length > SPACED_MAX);
  keyed(bar, bar.hidden ? [] : ranges.map((range, index) => ({ range, index })), (item) => item.index,
    () => element("span"),
    (node, { range: [start, end], index }) => {
      node.style.flexGrow = end - start + 1;
      node.title = `subtask ${index}: key groups ${start}–${end}`;
      setText(node, ranges.length <= NUMBERED_MAX ? index : "");
    });
}

let planned = null;
let planTimer = 0;

/** Asks for the plan of the chosen parallelism, once it has stayed the same for a moment. */
function planSoon(parallelism) {
  if (planned === parallelism || !mayOperate) return;
  planned = parallelism;
  clearTimeout(planTimer);
  planTimer = setTimeout(async () => {
    try {
      const plan = parallelism === null ? null : await post(`${path}/plan`, { parallelism });
      if (planned === parallelism) showPlan(plan);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (planned === parallelism) setChildren(byId("plan-figures"), ...definitions([["Plan", NONE, error.text]]));
    }
  }, PLAN_AFTER_MS);
}

function showPlan(plan) {
  if (!plan) {
    setChildren(byId("plan-figures"));
    return;
  }
  const { movement, downtime } = plan;
  const skews = movement.operators.map((one) => one.skew_ratio).filter((skew) => skew !== null);
  const files = movement.operators.flatMap((one) => one.subtasks).reduce((sum, one) => sum + one.files, 0);
  setChildren(byId("plan-figures"), ...definitions([
    ["Expected downtime", duration(downtime.expected_ms), downtime.reason ?? "by this job's last changes"],
    ["Bytes to move", bytes(movement.moved_bytes), movement.same_host
      ? `of ${bytes(movement.state_bytes)}: files are linked on the same host` : `of ${bytes(movement.state_bytes)}`],
    ["Files to open", number(files)],
    ["Largest subtask", skews.length ? percent(Math.max(...skews)) : NONE, "of the average subtask's state"],
  ]));
}

// --- the last rescale, phase by phase --------------------------------------------------------------------------------

/** The rows that show a rescale: each phase with its state, its start and its milliseconds so far. */
export function phaseRows(rescale, nowMs) {
  const inProgress = rescale.status === "IN_PROGRESS";
  const rows = rescale.phases.map((phase, index) => {
    const next = rescale.phases[index + 1]?.phase;
    const cut = phase.ended_at_ms === null && !inProgress;
    const state = cut || next === "ROLL_BACK" ? "failed" : phase.ended_at_ms === null ? "running" : "done";
    const soFar = cut ? null : Math.max(0, nowMs - phase.started_at_ms);
    return { phase: phase.phase, state, ms: phase.duration_ms ?? soFar, startMs: phase.started_at_ms };
  });
  const begun = new Set(rows.map((one) => one.phase));
  const moves = inProgress && !begun.has("ROLL_BACK");
  const waiting = moves ? Object.keys(PHASES).filter((name) => name !== "ROLL_BACK" && !begun.has(name)) : [];
  return [...rows, ...waiting.map((phase) => ({ phase, state: "waiting", ms: null, startMs: null }))];
}

function showProgress(rescale) {
  const { from_parallelism: from, to_parallelism: to, status } = rescale;
  const inProgress = status === "IN_PROGRESS";
  const rows = phaseRows(rescale, Date.now());
  setChildren(byId("rescale-title"), `Rescale ${from} → ${to} `, pill(status));
  const summary = byId("rescale-summary");
  summary.classList.toggle("soft", inProgress);
  setChildren(summary, ...(inProgress
    ? ["Requested at ", when(rescale.requested_at_ms), ". The job goes on until the savepoint; each bar is as long as its phase."]
    : [element("dl", { class: "definitions" }, ...definitions([
      ["Downtime", duration(rescale.downtime_ms), "from the last batch before to the first one after"],
      ["Whole rescale", duration(rescale.duration_ms)],
      ["Ended", when(rescale.ended_at_ms)],
    ])), ...failureNotice(rescale.failure)]));
  showTimeline(rescale, rows);
  announce(rescale, rows);
}

/** The bars of the phases on one axis of time, from the request to the end or to now. */
function showTimeline(rescale, rows) {
  const began = rescale.requested_at_ms;
  const lasted = Math.max(1, ...rows.map((one) => (one.startMs === null ? 0 : one.startMs - began + (one.ms ?? 0))));
  keyed(byId("phases"), rows, (one) => one.phase,
    (one) => element("li", {},
      element("span", {}, PHASES[one.phase] ?? one.phase, " ", element("span", { class: "visually-hidden" })),
      element("span", { class: "track", "aria-hidden": "true" }, element("span", { class: "bar-of-time" })),
      element("span", { class: "number" })),
    (node, one) => {
      node.dataset.state = one.state;
      const [label, track, took] = node.children;
      setText(label.lastElementChild, STATES[one.state]);
      const bar = track.firstElementChild.style;
      bar.marginInlineStart = one.startMs === null ? "0" : `${(100 * (one.startMs - began)) / lasted}%`;
      bar.width = `${(100 * (one.ms ?? 0)) / lasted}%`;
      setText(took, one.ms === null ? "" : duration(one.ms));
    });
}

/** One short sentence per phase, for screen readers. */
function announce(rescale, rows) {
  const text = rescale.status === "IN_PROGRESS"
    ? `Rescale to ${rescale.to_parallelism}: ${PHASES[rescale.phase] ?? rescale.phase}`
    : `Rescale to ${rescale.to_parallelism} ${OUTCOMES[rescale.status]}. Downtime ${duration(rescale.downtime_ms)}.`;
  const spoken = byId("rescale-live");
  // A rescale that ended before the page was opened is not announced.
  const isNews = rescale.status === "IN_PROGRESS" || rows.some((one) => one.state === "running");
  if (spoken.textContent || isNews) setText(spoken, text);
}

function failureNotice(failure) {
  if (!failure) return [];
  return [element("p", { class: "notice", "data-tone": "bad" }, failure.message, " ", element("code", {}, failure.code))];
}

// --- the past ones ---------------------------------------------------------------------------------------------------

function showLedger(past) {
  byId("ledger-table").hidden = past.length === 0;
  byId("no-ledger").hidden = past.length > 0;
  setChildren(byId("ledger"), ...past.map((one) => row([
    when(one.requested_at_ms),
    `${number(one.from_parallelism)} → ${number(one.to_parallelism)}`,
    element("span", {}, pill(one.status), one.failure ? element("small", { class: "why" }, one.failure.message) : ""),
    [duration(one.downtime_ms), "number"],
    [duration(one.duration_ms), "number"],
    [shareBar(one), "wide-cell"],
  ])));
}

/** The phases of a past rescale as one bar; their times are in its text. */
function shareBar(rescale) {
  const phases = rescale.phases.filter((phase) => phase.duration_ms !== null);
  if (!phases.length) return NONE;
  const text = phases.map((phase) => `${PHASES[phase.phase] ?? phase.phase} ${duration(phase.duration_ms)}`).join(" · ");
  const bar = element("span", { class: "shares", "aria-hidden": "true" }, ...phases.map((phase) => {
    const part = element("span", { dataset: { phase: phase.phase }, title: `${PHASES[phase.phase]}: ${duration(phase.duration_ms)}` });
    part.style.flexGrow = Math.max(phase.duration_ms, 1);
    return part;
  }));
  return element("span", {}, bar, element("small", { class: "soft" }, text));
}
