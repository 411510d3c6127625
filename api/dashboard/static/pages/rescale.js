// The rescale of a job: the plan of the chosen parallelism, one click, the phases as they run, and the past ones.

import { ApiError, get, plan as planOf, post } from "../api.js";
import { ask } from "../ask.js";
import { planBySubtask, planFigures } from "../change_plan.js";
import { changePill, downtime, hasEnded, shareBar, showChoices, showChange } from "../change_timeline.js";
import { byId, definitions, element, keyed, row, setChildren, setRefused, setText, when } from "../dom.js";
import { duration, NONE, number, rate } from "../format.js";
import { jobPage, path } from "../job_page.js";
import { ENDED, isChanging, takesOperations } from "../job_status.js";
import { rangesOf } from "../key_group_ranges.js";
import { newestCheckpoint } from "../newest_checkpoint.js";

/** Above these numbers of segments, the space is too small for their numbers, for gaps, or for segments at all. */
const NUMBERED_MAX = 32, SPACED_MAX = 96, DRAWN_MAX = 512;
const PAST_MAX = 50, PLAN_AFTER_MS = 250, STOPS_APART = 1.05;

/** What a rescale does while the job runs on, by the driver that carries it out. */
const PREPARATIONS = {
  LIVE: "The running driver prepares the new subtasks beside the batches. ",
  STANDBY: "A new driver starts beside the running one, and takes over at a savepoint. ",
};

const input = byId("parallelism"), slider = byId("slider"), button = byId("rescale");
let job = null;
/** The subtasks of the newest checkpoint. */
let present = null;
/** The numbers that the slider's positions stand for. */
let stops = [1];
let edited = false;
let chosen = Number(new URLSearchParams(location.search).get("to")) || null;
let sending = false;
let refusal = "";
let mayOperate = false;

const page = jobPage(() => Promise.all([
  get(`${path}/operations?kind=RESCALE&limit=${PAST_MAX}`), newestCheckpoint(),
]), (shown, [{ operations: rescales }, checkpoint], may) => {
  job = shown;
  present = checkpoint?.operators[0]?.subtasks ?? null;
  mayOperate = may;
  const [latest] = rescales;
  input.max = job.spec.max_parallelism;
  if (stops.at(-1) !== job.spec.max_parallelism) {
    stops = stopsUpTo(job.spec.max_parallelism);
    slider.max = stops.length - 1;
    slider.value = positionOf(input.valueAsNumber);
  }
  // A number that the user has chosen is kept; otherwise the field follows the job.
  if (!edited && !sending) setWanted(chosen ?? (latest && !hasEnded(latest) ? latest.to_parallelism : job.spec.parallelism));
  showForm();
  if (latest) showChange(latest);
  showChoices(latest, may, page);
  showPast(rescales.filter(hasEnded));
});

// --- the form and the plan -------------------------------------------------------------------------------------------

input.addEventListener("input", () => {
  slider.value = positionOf(input.valueAsNumber);
  choose();
});
slider.addEventListener("input", () => {
  input.value = stops[Number(slider.value)];
  choose();
});
byId("rescale-form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});

/** The numbers of the slider: first every one, then each some percent more, because 1 to 8 matters more than 121 to 128. */
function stopsUpTo(most) {
  const found = [1];
  while (found.at(-1) < most) found.push(Math.min(most, Math.max(found.at(-1) + 1, Math.round(found.at(-1) * STOPS_APART))));
  return found;
}

/** The last stop that is not above a number. */
function positionOf(parallelism) {
  return Math.max(0, stops.findLastIndex((stop) => stop <= parallelism));
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
  if (sending || whyNot()) return;
  const wanted = input.valueAsNumber;
  const plan = shownPlan?.to_parallelism === wanted ? shownPlan : null;
  const expected = plan?.downtime.expected_ms ?? null;
  const agreed = await ask({
    title: `Rescale ${job.name} from ${number(job.spec.parallelism)} to ${number(wanted)}?`,
    text: `${PREPARATIONS[plan?.rescale_mode] ?? ""}The job pauses${expected === null ? "" : ` for about ${duration(expected)}`} and continues `
      + "with all its state; no record is lost or counted twice. If it does not run at the new parallelism, it goes back "
      + "automatically. You can rescale it back at any time.",
    action: `Rescale to ${number(wanted)}`,
    keep: `Stay at ${number(job.spec.parallelism)}`,
    danger: false,
  });
  if (!agreed) return;
  sending = true;
  refusal = "";
  showForm();
  try {
    await post(`${path}/rescale`, { parallelism: wanted });
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
  if (!input.validity.valid) return `Enter a whole number from 1 to ${number(job.spec.max_parallelism)}.`;
  if (isChanging(job)) return "Another change of this job is in progress.";
  if (ENDED.has(job.status.state)) return "Only a running job can be rescaled. Set this job's parallelism on its page Revisions.";
  if (!takesOperations(job)) return "Only a running job can be rescaled.";
  if (sending) return "The request is being sent.";
  return input.valueAsNumber === job.spec.parallelism ? "The job runs at this parallelism." : "";
}

function showForm() {
  if (!job) return;
  const reason = whyNot();
  button.hidden = !mayOperate;
  setRefused(button, reason);
  setText(button, reason ? "Rescale" : `Rescale to ${number(input.valueAsNumber)}`);
  const bounds = `From 1 to ${number(job.spec.max_parallelism)}; now ${number(job.spec.parallelism)}.`;
  const hint = byId("parallelism-hint");
  setText(hint, refusal || (reason && job.spec.parallelism !== input.valueAsNumber ? `${bounds} ${reason}` : bounds));
  hint.classList.toggle("refused", Boolean(refusal) || !input.validity.valid);
  slider.setAttribute("aria-valuetext", number(input.validity.valid ? input.valueAsNumber : stops[Number(slider.value)]));
  showRanges(input.validity.valid ? input.valueAsNumber : job.spec.parallelism);
}

function showRanges(parallelism) {
  const isChange = parallelism !== job.spec.parallelism;
  byId("ranges-now").hidden = byId("ranges-now-label").hidden = !isChange;
  if (isChange) showBar("ranges-now", "Now", job.spec.parallelism, present);
  planSoon(isChange ? parallelism : null);
  showBar("ranges", isChange ? "Then" : "Now", parallelism, isChange ? partsOf(shownPlan) : present);
}

/** The subtasks of a plan: its operators have the same ranges. */
const partsOf = (plan) => plan?.movement.operators[0]?.subtasks ?? null;

function showBar(id, moment, parallelism, parts) {
  const total = job.spec.max_parallelism;
  const ranges = rangesOf(parts, total, parallelism);
  const sizes = ranges.map(([start, end]) => end - start + 1);
  const least = Math.min(...sizes), most = Math.max(...sizes);
  const each = least === most ? number(least) : `${number(least)} ${most - least === 1 ? "or" : "to"} ${number(most)}`;
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

/** The parallelism whose plan is asked for or shown; null without a change, and undefined after an outage. */
let planned = null;
let planTimer = 0;
let shownPlan = null;

/** Asks for the plan of the chosen parallelism, once it has stayed the same for a moment. */
function planSoon(parallelism) {
  if (planned === parallelism || !mayOperate) return;
  planned = parallelism;
  clearTimeout(planTimer);
  planTimer = setTimeout(async () => {
    try {
      const plan = parallelism === null ? null : await planOf(path, { spec: { parallelism } });
      if (planned === parallelism) showPlan(plan);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (planned !== parallelism) return;
      if (error.isOutage) planned = undefined; // it is asked for again
      shownPlan = null;
      setChildren(byId("plan-subtasks"));
      setChildren(byId("plan-figures"), ...definitions([["Plan", NONE, error.text]]));
    }
  }, PLAN_AFTER_MS);
}

function showPlan(plan) {
  shownPlan = plan;
  if (plan) showBar("ranges", "Then", plan.to_parallelism, partsOf(plan));
  setChildren(byId("plan-figures"), ...(plan ? planFigures(plan) : []));
  setChildren(byId("plan-subtasks"), ...(plan ? planBySubtask(plan) : []));
}

// --- the past ones ---------------------------------------------------------------------------------------------------

function showPast(past) {
  byId("past-table").hidden = past.length === 0;
  byId("no-past").hidden = past.length > 0;
  setChildren(byId("past"), ...past.map((one) => row([
    when(one.requested_at_ms),
    `${number(one.from_parallelism)} → ${number(one.to_parallelism)}`,
    element("span", {}, changePill(one), one.failure ? element("small", { class: "why" }, one.failure.message) : ""),
    [downtime(one), "number"],
    [duration(one.duration_ms), "number"],
    [couldProcess(one), "number"],
    [shareBar(one), "wide-cell"],
  ])));
}

/** The rates that the job could process before and after a rescale; a rescale that did not take place has no rate after it. */
function couldProcess(one) {
  const before = rate(one.metrics_before?.processed_rate);
  return one.status === "COMPLETED" ? `${before} → ${rate(one.metrics_after?.processed_rate)}` : before;
}
