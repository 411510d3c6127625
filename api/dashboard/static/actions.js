// Starts, stops and cancels a job, and takes savepoints of it.

import { get, post } from "./api.js";
import { byId, setText } from "./dom.js";

const STARTABLE = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);

export class Actions {
  /** @param {string} path of the job @param {() => void} refresh called when something has changed */
  constructor(path, refresh) {
    this.path = path;
    this.refreshPage = refresh;
    /** The operation whose result must still be shown. @type {{name: string, path: string} | null} */
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
      const id = answer?.operation_id;
      this.pending = id ? { name, path: `/operations/${encodeURIComponent(id)}` } : null;
      this.tell(`${name}: accepted.`);
    } catch (error) {
      this.tell(`${name}: ${error.message} ${error.advice ?? ""}`, "bad");
    }
    this.refreshPage();
  }

  /** Shows the result of the pending operation, once it has ended. */
  async refresh() {
    const pending = this.pending;
    if (!pending) return;
    const operation = await get(pending.path);
    if (operation.status === "IN_PROGRESS" || this.pending !== pending) return;
    this.pending = null;
    if (operation.status === "FAILED") {
      this.tell(`${pending.name}: ${operation.failure_cause?.message ?? "failed."}`, "bad");
    } else {
      this.tell(`${pending.name}: completed. ${operation.operation?.location ?? ""}`, "good");
    }
  }

  tell(text, tone = "calm") {
    const line = byId("message");
    line.hidden = false;
    line.dataset.tone = tone;
    setText(line, text.trim());
  }
}
