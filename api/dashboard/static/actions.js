// Starting, stopping and cancelling a job, and taking savepoints of it.

import { get, post } from "./api.js";
import { byId, setText } from "./dom.js";

const STARTABLE = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);

export class Actions {
  /** @param {string} path of the job @param {() => void} refresh to be called when something has changed */
  constructor(path, refresh) {
    this.path = path;
    this.refreshPage = refresh;
    /** The operation whose end is still to be told. @type {{name: string, path: string} | null} */
    this.pending = null;

    byId("start").addEventListener("click", () => this.send("Start", "/start"));
    byId("savepoint").addEventListener("click", () => this.send("Savepoint", "/savepoints"));
    byId("stop").addEventListener("click", () => this.send("Stop with savepoint", "/stop"));
    const dialog = byId("confirm-cancel");
    byId("cancel").addEventListener("click", () => {
      dialog.returnValue = "";
      dialog.showModal();
    });
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "cancel") this.send("Cancel", "/cancel");
    });
  }

  show(job) {
    const startable = STARTABLE.has(job.status);
    byId("actions").hidden = false;
    byId("start").hidden = !startable;
    for (const id of ["savepoint", "stop", "cancel"]) byId(id).hidden = startable;
    byId("savepoint").disabled = job.status !== "RUNNING";
    byId("stop").disabled = job.status === "STOPPING";
  }

  async send(name, rest) {
    try {
      const answer = await post(this.path + rest);
      this.pending = answer?.operation_id ? { name, path: `/operations/${encodeURIComponent(answer.operation_id)}` } : null;
      this.tell(`${name}: accepted.`);
    } catch (error) {
      this.tell(`${name}: ${error.message} ${error.advice ?? ""}`, "bad");
    }
    this.refreshPage();
  }

  /** Tells how the pending operation has ended, once it has. */
  async refresh() {
    const pending = this.pending;
    if (!pending) return;
    const operation = await get(pending.path);
    if (operation.status === "IN_PROGRESS" || this.pending !== pending) return;
    this.pending = null;
    if (operation.status === "FAILED") this.tell(`${pending.name}: ${operation.failure_cause?.message ?? "failed."}`, "bad");
    else this.tell(`${pending.name}: completed.${operation.operation?.location ? ` ${operation.operation.location}` : ""}`, "good");
  }

  tell(text, tone = "calm") {
    const line = byId("message");
    line.hidden = false;
    line.dataset.tone = tone;
    setText(line, text.trim());
  }
}
