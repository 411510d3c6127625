// Starts, stops, cancels and deletes a job, and takes savepoints of it.

import { ApiError, get, post, remove } from "./api.js";
import { ask } from "./ask.js";
import { actionButton, byId, element, setRefused, tell, words } from "./dom.js";
import { ENDED, isChanging, takesOperations } from "./job_status.js";

export class JobActions {
  /** @param {string} path of the job @param {() => void} refresh called when something has changed */
  constructor(path, refresh) {
    this.path = path;
    this.refreshPage = refresh;
    /** The operation whose result must still be shown. @type {{name: string, path: string} | null} */
    this.pending = null;
    this.job = null;
    this.buttons = {
      start: actionButton("Start", () => this.send("Start", "/start"), { class: "primary" }),
      savepoint: actionButton("Savepoint", () => this.send("Savepoint", "/savepoint")),
      stop: actionButton("Stop…", () => this.askThenStop()),
      cancel: actionButton("Cancel…", () => this.askThenSend("Cancel", "/cancel", {
        title: `Cancel ${this.job.name} without a savepoint?`,
        text: "The job ends now. When you start it again, it continues from its latest completed checkpoint and repeats "
          + "later batches; results stay exactly once.",
        action: "Cancel the job",
        keep: "Keep running",
      }), { class: "danger" }),
      remove: actionButton("Delete…", () => this.removeJob(), { class: "danger" }),
    };
    byId("actions").append(...Object.values(this.buttons));
  }

  show(job) {
    this.job = job;
    const { start, savepoint, stop, cancel, remove: removal } = this.buttons;
    const ended = ENDED.has(job.status.state);
    byId("actions").hidden = false;
    start.hidden = removal.hidden = !ended;
    savepoint.hidden = stop.hidden = cancel.hidden = ended;
    setRefused(savepoint, isChanging(job) ? "A change of this job is in progress."
      : takesOperations(job) ? "" : "Only a running job can take a savepoint.");
    setRefused(stop, job.status.state === "STOPPING" ? "The job is already stopping." : "");
  }

  /** A sleeping driver takes no savepoint: its last checkpoint has everything. */
  askThenStop() {
    const asleep = this.job.status.state === "SLEEPING";
    const name = asleep ? "Stop" : "Stop with savepoint";
    const from = asleep ? "The job sleeps, and stops at once. Start continues from its last checkpoint"
      : "The job takes a savepoint and then stops until you start it again. Start continues from that savepoint";
    return this.askThenSend(name, "/stop", {
      title: asleep ? `Stop ${this.job.name}?` : `Stop ${this.job.name} with a savepoint?`,
      text: `${from}, so no record is lost.`,
      action: name,
      keep: asleep ? "Let it sleep" : "Keep running",
    });
  }

  async askThenSend(name, rest, question) {
    if (await ask(question)) this.send(name, rest);
  }

  async send(name, rest) {
    try {
      const answer = await post(this.path + rest);
      this.pending = null;
      tell(`${name}: accepted.`);
      this.follow(name, answer.id);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      tell(`${name}: ${error.text}`, "bad");
    }
    this.refreshPage();
  }

  /** Shows the result of an operation once it has ended. */
  follow(name, operationId) {
    this.pending = { name, path: `/v1/operations/${encodeURIComponent(operationId)}` };
  }

  async removeJob() {
    const agreed = await ask({
      title: `Delete ${this.job.name}?`,
      text: "The job, its history, and its checkpoints and log in the object store are deleted. Its own savepoints stay; savepoints of rescales and upgrades are deleted. "
        + "This cannot be undone.",
      action: "Delete the job",
    });
    if (!agreed) return;
    try {
      await remove(this.path);
      location.assign("/ui/");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      tell(`Delete: ${error.text}`, "bad");
    }
  }

  /** Checks whether the pending operation has ended. */
  async refresh() {
    const pending = this.pending;
    if (!pending) return;
    const operation = await get(pending.path);
    if (operation.status === "IN_PROGRESS" || this.pending !== pending) return;
    this.pending = null;
    if (operation.status !== "COMPLETED") {
      tell(`${pending.name}: ${operation.failure?.message ?? `${words(operation.status)}.`}`, "bad");
    } else {
      const { checkpoint_id: id, location } = operation.result ?? {};
      const page = `/ui/jobs/${encodeURIComponent(operation.job_id)}/checkpoints/${id}`;
      tell(`${pending.name}: completed.`, "good", id == null ? location ?? "" : element("a", { href: page }, `#${id}`));
    }
  }
}
