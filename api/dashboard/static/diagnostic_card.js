// Looks into a running job: stacks, profiles, samples of records and logs of executors, beside its batches.

import { ApiError, get, post } from "./api.js";
import { byId, element, setChildren, setRefused, setText, tell } from "./dom.js";
import { time } from "./format.js";
import { callTree, drawFlameGraph } from "./flame_graph.js";

const POLL_MS = 500;
const KINDS = {
  THREAD_DUMP: "Stacks of all threads",
  PROFILE: "Flame graph of functions",
  SAMPLE: "Records of an operator",
  EXECUTOR_LOGS: "Logs of executors",
};

/** The card, which is hidden from users who may not look into jobs. */
export class DiagnosticCard {
  #path;
  /** The names of the operators that can be chosen. */
  #operators = "";
  #isBusy = false;

  /** @param {string} path the path of the job in the API */
  constructor(path) {
    this.#path = `${path}/diagnostics`;
    setChildren(byId("diagnostic-kind"), ...Object.entries(KINDS).map(([kind, label]) => element("option", { value: kind }, label)));
    byId("diagnostic-kind").addEventListener("change", () => this.#showFields());
    byId("diagnostic-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#carryOut(() => this.#request());
    });
    byId("diagnostic-earlier").addEventListener("change", () => this.#carryOut(() => this.#read(byId("diagnostic-earlier").value)));
    this.#showFields();
  }

  /** Shows the card of a job. */
  show(job, mayOperate) {
    const isFirst = byId("diagnostic").hidden;
    byId("diagnostic").hidden = !mayOperate;
    if (!mayOperate) return;
    const { attempt } = job.status;
    const uids = (attempt?.metrics?.operators ?? []).map(({ uid }) => uid);
    if (uids.join() !== this.#operators) {
      this.#operators = uids.join();
      setChildren(byId("diagnostic-operator"), ...uids.map((uid) => element("option", { value: uid }, uid)));
    }
    if (!this.#isBusy) setRefused(byId("diagnostic-now"), attempt?.stage === "ACTIVE" ? "" : "No driver runs the job.");
    if (isFirst) this.#carryOut(() => this.#list());
  }

  #showFields() {
    const kind = byId("diagnostic-kind").value;
    byId("diagnostic-operator-field").hidden = byId("diagnostic-values-field").hidden = kind !== "SAMPLE";
    byId("diagnostic-seconds-field").hidden = !["PROFILE", "SAMPLE"].includes(kind);
  }

  async #request() {
    const kind = byId("diagnostic-kind").value;
    const duration_ms = 1000 * Number(byId("diagnostic-seconds").value);
    const requested = await post(this.#path, {
      kind,
      ...(kind === "PROFILE" && { duration_ms }),
      ...(kind === "SAMPLE" && {
        duration_ms, operator_uid: byId("diagnostic-operator").value, with_values: byId("diagnostic-values").checked,
      }),
    });
    setText(byId("diagnostic-said"), "Waiting for the driver…");
    await this.#read(requested.id);
    await this.#list(requested.id);
  }

  /** Shows a diagnostic once the driver has answered. */
  async #read(id) {
    if (!id) return;
    let answer = await get(`${this.#path}/${id}`);
    while (answer.status === "IN_PROGRESS") {
      await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
      answer = await get(`${this.#path}/${id}`);
    }
    draw(answer);
  }

  async #list(chosen = "") {
    const { diagnostics } = await get(this.#path);
    byId("diagnostic-earlier-field").hidden = diagnostics.length === 0;
    setChildren(byId("diagnostic-earlier"), element("option", { value: "" }, "Choose a result"), ...diagnostics.map((each) =>
      element("option", { value: each.id }, `${time(each.requested_at_ms)} ${KINDS[each.kind]}, by ${each.requested_by}`)));
    byId("diagnostic-earlier").value = chosen;
  }

  async #carryOut(act) {
    this.#isBusy = true;
    setRefused(byId("diagnostic-now"), "The driver is being asked.");
    try {
      await act();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setText(byId("diagnostic-said"), "");
      tell(error.text, "bad");
    } finally {
      this.#isBusy = false;
      setRefused(byId("diagnostic-now"));
    }
  }
}

function draw({ kind, failure, parts }) {
  setText(byId("diagnostic-said"), failure ? `${failure.message} ${failure.advice ?? ""}` : parts.length ? "" : "No process has answered.");
  const hasStacks = ({ text }) => / \d+$/m.test(text);
  const isProfile = kind === "PROFILE" && parts.some(hasStacks);
  byId("flame").hidden = !isProfile;
  if (isProfile) drawFlameGraph(byId("flame"), callTree(parts));
  setChildren(byId("diagnostic-parts"), ...(isProfile ? parts.filter((part) => !hasStacks(part)) : parts).map(({ name, text }) =>
    element("details", { open: parts.length <= 2, "data-key": name },
      element("summary", {}, name), element("pre", { class: "diagnostic-text", tabindex: 0 }, text || "No samples."))));
}
