// The autoscaler of a job: its mode, its latest decision, and its last move.

import { ApiError, get } from "./api.js";
import { byId, definitions, element, prose, setChildren, setText, since, words } from "./dom.js";
import { number, percent, rate } from "./format.js";
import { offerReplay } from "./input_replay.js";

/** The autoscaler decides every 15 seconds. */
const EVERY_MS = 5000;
const MODES = {
  MONITORING: "advises; the parallelism stays as it is",
  ACTIVE: "chooses the parallelism",
};

/** The card, which is hidden while the autoscaler is disabled. */
export class AutoscalerCard {
  #path;
  #readAtMs = 0;

  /** @param {string} path the path of the job in the API */
  constructor(path) {
    this.#path = `${path}/autoscaler`;
    offerReplay(this.#path);
  }

  /** Shows the card of a job, and reads it again if it may be old. */
  show(job) {
    const { mode } = job.spec.autoscaler;
    byId("autoscaler").hidden = mode === "DISABLED";
    if (mode === "DISABLED" || Date.now() - this.#readAtMs < EVERY_MS) return;
    this.#readAtMs = Date.now();
    byId("replay-parallelism").value ||= job.spec.parallelism;
    setText(byId("autoscaler-mode"), MODES[mode]);
    get(this.#path).then(draw, (error) => {
      if (!(error instanceof ApiError)) throw error; // the page says that the control plane does not answer
    });
  }
}

function draw({ decision, last_move: move }) {
  const { present, facts } = decision ?? {};
  setChildren(byId("autoscaler-said"), ...(decision === null ? ["It has not decided yet."] : [
    element("strong", {}, `${words(decision.verdict)}:`), ` ${decision.message}. `, ...prose(decision.advice ?? "")]));
  byId("autoscaler-facts").hidden = decision === null;
  if (decision !== null) {
    setChildren(byId("autoscaler-facts"), ...definitions([
      ["Parallelism", number(decision.parallelism), decision.target === decision.parallelism
        ? `within ${number(facts.parallelism_min)} to ${number(facts.parallelism_max)}`
        : `${number(decision.target)} would fit`],
      ["Input", rate(facts.input_records_per_second), `at most ${rate(facts.peak_records_per_second)} lately`],
      ["Capacity", rate(present?.capacity ?? null), "in batches of two seconds or more"],
      ["Used", percent(present?.utilization ?? null), "by the input and the backlog"],
      ["Confirmed", since(decision.confirmed_at_ms), ""],
    ]));
  }
  setChildren(byId("autoscaler-move"), ...(move === null ? [] : [
    "Last move ", since(move.at_ms), ` (${words(move.outcome).toLowerCase()}): ${move.message}. `, ...effectOf(move)]));
}

function effectOf({ present, expected, measured }) {
  if (expected === null) return [];
  const capacity = `Capacity before ${rate(present.capacity)}, expected ${rate(expected.capacity)}`;
  return [measured === null ? `${capacity}.` : `${capacity}, measured ${rate(measured.capacity)}.`];
}
