// The rescale form, its preview of the key group ranges, and the phases of the last rescale.

import { post } from "./api.js";
import { byId, element, definitions, keyed, pill, setChildren, setText } from "./dom.js";
import { duration, number, time } from "./format.js";

const PHASES = {
  REQUESTED: "Start new driver",
  SAVEPOINT: "Savepoint",
  STOP: "Stop",
  RESTORE: "Restore",
  VERIFY: "Verify running",
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

/** The key groups of each subtask: [start, end], inclusive, as the runtime assigns them. */
export function keyGroupRanges(maxParallelism, parallelism) {
  return Array.from({ length: parallelism }, (_, index) => [
    Math.ceil((index * maxParallelism) / parallelism),
    Math.floor(((index + 1) * maxParallelism - 1) / parallelism),
  ]);
}

/** The rows that show a rescale: each phase with its state and its milliseconds so far. */
export function phaseRows(rescale, nowMs) {
  const inProgress = rescale.status === "IN_PROGRESS";
  const rows = rescale.phases.map((phase, index) => {
    const next = rescale.phases[index + 1]?.phase;
    const cut = phase.ended_at_ms === null && !inProgress;
    const state = cut || next === "ROLL_BACK" ? "failed" : phase.ended_at_ms === null ? "running" : "done";
    const soFar = cut ? null : Math.max(0, nowMs - phase.started_at_ms);
    return { phase: phase.phase, state, ms: phase.duration_ms ?? soFar };
  });
  const begun = new Set(rows.map((row) => row.phase));
  const moves = inProgress && !begun.has("ROLL_BACK");
  const waiting = moves ? Object.keys(PHASES).filter((name) => name !== "ROLL_BACK" && !begun.has(name)) : [];
  return [...rows, ...waiting.map((phase) => ({ phase, state: "waiting", ms: null }))];
}

export class Rescale {
  /** @param {string} path of the job @param {() => void} refresh called when something has changed */
  constructor(path, refresh) {
    this.path = path;
    this.refresh = refresh;
    this.job = null;
    this.edited = false;
    this.sending = false;
    this.refusal = "";
    this.input = byId("parallelism");
    this.input.addEventListener("input", () => {
      this.edited = true;
      this.refusal = "";
      this.showForm();
    });
    byId("rescale-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  async send() {
    if (this.sending) return;
    this.sending = true;
    this.refusal = "";
    this.showForm();
    try {
      await post(`${this.path}/rescale`, { parallelism: this.input.valueAsNumber });
      this.edited = false;
    } catch (error) {
      this.refusal = `${error.message} ${error.advice ?? ""}`.trim();
    }
    this.sending = false;
    this.showForm();
    this.refresh();
  }

  show(job, latest) {
    this.job = job;
    this.input.max = job.max_parallelism;
    // A number that the user has typed is kept; otherwise the field follows the job.
    if (!this.edited && !this.sending) {
      const wanted = latest?.status === "IN_PROGRESS" ? latest.to_parallelism : job.parallelism;
      if (this.input.value !== String(wanted)) this.input.value = wanted;
    }
    this.showForm();
    if (latest) this.showProgress(latest);
  }

  showForm() {
    const { job, input } = this;
    if (!job) return;
    const running = job.status === "RUNNING";
    const valid = input.validity.valid;
    byId("rescale").disabled = !running || !valid || this.sending || input.valueAsNumber === job.parallelism;
    const bounds = `From 1 to ${number(job.max_parallelism)}; now ${number(job.parallelism)}.`;
    const hint = byId("parallelism-hint");
    setText(hint, this.refusal || (running ? bounds : `${bounds} Only a running job can be rescaled.`));
    hint.classList.toggle("refused", Boolean(this.refusal));
    this.showRanges(valid ? input.valueAsNumber : job.parallelism);
  }

  showRanges(parallelism) {
    const total = this.job.max_parallelism;
    const ranges = keyGroupRanges(total, parallelism);
    const sizes = ranges.map(([start, end]) => end - start + 1);
    const least = Math.min(...sizes), most = Math.max(...sizes);
    const each = least === most ? number(least) : `${number(least)} or ${number(most)}`;
    setText(byId("ranges-label"), parallelism === 1
      ? `1 subtask owns all ${number(total)} key groups`
      : `${number(parallelism)} subtasks own ${each} of ${number(total)} key groups each`);
    const bar = byId("ranges");
    bar.hidden = parallelism > DRAWN_MAX;
    bar.toggleAttribute("data-dense", parallelism > SPACED_MAX);
    keyed(bar, bar.hidden ? [] : ranges.map((range, index) => ({ range, index })), (item) => item.index,
      () => element("span"),
      (node, { range: [start, end], index }) => {
        node.style.flexGrow = end - start + 1;
        node.title = `subtask ${index}: key groups ${start}–${end}`;
        setText(node, parallelism <= NUMBERED_MAX ? index : "");
      });
  }

  showProgress(rescale) {
    const { from_parallelism: from, to_parallelism: to, status } = rescale;
    const inProgress = status === "IN_PROGRESS";
    const rows = phaseRows(rescale, Date.now());
    setChildren(byId("rescale-title"), `Rescale ${from} → ${to} `, pill(status));
    const summary = byId("rescale-summary");
    summary.classList.toggle("soft", inProgress);
    setChildren(summary, ...(inProgress
      ? [`Requested at ${time(rescale.requested_at_ms)}.`]
      : [element("dl", { class: "definitions" }, ...definitions([
        ["Downtime", duration(rescale.downtime_ms)],
        ["Total", duration(rescale.duration_ms)],
        ["Ended", time(rescale.ended_at_ms)],
      ])), ...failureNotice(rescale.failure)]));

    const longest = Math.max(1, ...rows.map((row) => row.ms ?? 0));
    keyed(byId("phases"), rows, (row) => row.phase,
      (row) => element("li", {},
        element("span", {}, PHASES[row.phase] ?? row.phase, " ", element("span", { class: "visually-hidden" })),
        element("meter", { min: 0, max: 1, "aria-hidden": "true" }),
        element("span", { class: "number" })),
      (node, row) => {
        node.dataset.state = row.state;
        const [label, bar, ms] = node.children;
        setText(label.lastElementChild, STATES[row.state]);
        bar.value = (row.ms ?? 0) / longest;
        setText(ms, row.ms === null ? "" : `${number(row.ms)} ms`);
      });
    this.announce(rescale, rows);
  }

  /** One short sentence per phase, for screen readers. */
  announce(rescale, rows) {
    const text = rescale.status === "IN_PROGRESS"
      ? `Rescale to ${rescale.to_parallelism}: ${PHASES[rescale.phase] ?? rescale.phase}`
      : `Rescale to ${rescale.to_parallelism} ${OUTCOMES[rescale.status]}. Downtime ${duration(rescale.downtime_ms)}.`;
    const live = byId("rescale-live");
    // A rescale that ended before the page was opened is not announced.
    const isNews = rescale.status === "IN_PROGRESS" || rows.some((row) => row.state === "running");
    if (live.textContent || isNews) setText(live, text);
  }
}

function failureNotice(failure) {
  if (!failure) return [];
  const code = element("code", {}, failure.code);
  return [element("p", { class: "notice", "data-tone": "bad" }, failure.message, " ", code)];
}
