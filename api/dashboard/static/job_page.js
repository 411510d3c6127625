// The part that all tabs of a job share: its head with status and actions, faults, and the refresh.

import { ApiError, get } from "./api.js";
import { byId, element, prose, setChildren, setPill, setText, when } from "./dom.js";
import { number } from "./format.js";
import { JobActions } from "./job_actions.js";
import { sleepOf } from "./job_status.js";
import { live } from "./live.js";
import { mayActAs, viewer } from "./viewer.js";

const reference = encodeURIComponent(byId("job").dataset.job);
/** The path of the page's job in the API. */
export const path = `/v1/jobs/${reference}`;
/** The path of a tab of the page's job. */
export const tabPath = (tab) => `/ui/jobs/${reference}/${tab}`;

/**
 * Runs a tab.
 * @template Read
 * @param {() => Promise<Read>} read what the tab needs beside the job
 * @param {(job: object, read: Read, mayOperate: boolean) => void} show
 * @param {string[]} topics of the job's stream that `read` depends on
 * @param {number} everyMs between two reads, without a stream
 * @returns {{now: () => void, follow: (name: string, operationId: string) => void}} `follow` shows an operation's end.
 */
export function jobPage(read, show, topics = [], everyMs = 1000) {
  const page = { now: () => {}, follow: (name, operationId) => actions.follow(name, operationId) };
  const actions = new JobActions(path, () => page.now());
  /** @type {[object, Read, boolean] | null} */
  let shown = null;
  page.now = live(async () => {
    try {
      const user = await viewer();
      const [job, found] = await Promise.all([get(path), read(), actions.refresh()]);
      shown = [job, found, mayActAs(user, "OPERATOR")];
      showHead(job);
      if (shown[2]) actions.show(job);
      byId("body").hidden = false; // before it is filled: what is hidden cannot be scrolled to its end
      show(...shown);
    } catch (error) {
      explainMissing(error);
      throw error;
    }
  }, {
    everyMs,
    stream: `${path}/stream`,
    topics: ["job", "operations", ...topics],
    redraw: () => shown && show(...shown),
  }).now;
  byId("tabs").querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "center" });
  return page;
}

function explainMissing(error) {
  if (!(error instanceof ApiError) || error.code !== "JOB_NOT_FOUND") return;
  setText(byId("name"), "Job not found");
  for (const id of ["body", "actions", "status", "tabs"]) byId(id).hidden = true;
}

function showHead(job) {
  document.title = `${byId("job").dataset.tab} of ${job.name} · Keyscale`;
  setText(byId("name"), job.name);
  setText(byId("job-id"), job.id);
  setPill(byId("status"), job.status.state);
  const labels = Object.entries(job.labels);
  byId("labels").hidden = labels.length === 0;
  setChildren(byId("labels"), ...labels.map(([name, value]) => element("li", {}, `${name}: ${value}`)));
  showFailure(job);
  showHealth(job.status);
  showSleep(job);
}

function showSleep(job) {
  const sleep = sleepOf(job);
  const notice = byId("sleep");
  notice.hidden = !sleep;
  if (sleep) setChildren(notice, ...(sleep.since_ms === null ? [] : ["Since ", when(sleep.since_ms), ": "]), `${sleep.message}.`);
}

function showFailure(job) {
  const box = byId("failure");
  box.hidden = !job.status.failure;
  if (job.status.failure) {
    const said = job.status.state === "FAILED" ? "The job failed. " : "The job had to restart. ";
    setChildren(box, element("strong", {}, said), ...failureParts(job.status.failure));
  }
}

/** Where the advice names a command, the pages have a button for it. */
const COMMAND = / \([^()]*\.\/keyscale[^()]*\)/g;

/** The parts of a failure: message, place, code, advice, and the user's traceback, which may be open at first. */
export function failureParts({ code, message, traceback, operator_uid: uid, subtask, advice }, isOpen = false) {
  const where = [uid && `operator ${uid}`, subtask != null && `subtask ${subtask}`].filter(Boolean).join(", ");
  return [
    element("span", { class: "said" }, message), " ", element("code", {}, code), where ? ` (${where})` : "",
    advice ? element("p", { class: "advice" }, ...prose(advice.replaceAll(COMMAND, ""))) : "",
    traceback
      ? element("details", { open: isOpen }, element("summary", {}, "Traceback"), element("pre", { tabindex: 0 }, traceback))
      : "",
  ];
}

/** The failure has a box of its own. */
function showHealth({ health, failure }) {
  const score = byId("health-score");
  score.hidden = health.score === null;
  score.dataset.tone = HEALTH_TONES[health.level] ?? "calm";
  setText(score, `Health ${number(health.score)}`);
  const reasons = health.reasons.filter(({ code, message }) => code !== failure?.code || message !== failure.message);
  const notice = byId("health");
  notice.hidden = reasons.length === 0;
  notice.dataset.tone = health.level === "CRITICAL" ? "bad" : "calm";
  setChildren(notice.firstElementChild, ...reasons.map(({ code, message, since_ms: since, advice }) =>
    element("li", {}, ...(since === null ? [] : ["Since ", when(since), ": "]), `${message} `, element("code", {}, code),
      ...(advice ? [" ", ...prose(advice.replaceAll(COMMAND, ""))] : []))));
}

const HEALTH_TONES = { OK: "good", DEGRADED: "busy", CRITICAL: "bad" };
