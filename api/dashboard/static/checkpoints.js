// A job's checkpoints: counts, the latest of each kind, and the history with the details of operators and subtasks.

import { get } from "./api.js";
import { byId, element, definitions, keyed, pill, setChildren, setPill, setText } from "./dom.js";
import { ago, bytes, duration, NONE, number, time } from "./format.js";

const COLUMNS = 8;
const SHOWN_FIRST = 12, SHOWN_MAX = 1000;

export class Checkpoints {
  /** @param {string} path of the job @param {() => void} refresh called when more checkpoints should be shown */
  constructor(path, refresh) {
    this.path = path;
    this.shown = SHOWN_FIRST;
    /** Open rows: the checkpoint's number, and its details once they are known. @type {Map<number, object | null>} */
    this.open = new Map();
    this.history = [];
    byId("older").addEventListener("click", () => {
      this.shown = Math.min(this.shown * 4, SHOWN_MAX);
      refresh();
    });
  }

  /** The path of the statistics that `show` takes. */
  get statisticsPath() {
    return `${this.path}/checkpoints?limit=${this.shown}`;
  }

  show(job, { counts, latest, history }) {
    const { interval_ms: interval, retained_count: retained } = job.checkpoints;
    setText(byId("checkpoint-settings"), `every ${duration(interval)}, ${number(retained)} retained`);
    setChildren(byId("counts"), ...definitions([
      ["Triggered", number(counts.total)],
      ["In progress", number(counts.in_progress)],
      ["Completed", number(counts.completed)],
      ["Failed", number(counts.failed)],
      ["Restored", number(counts.restored)],
    ]));
    setChildren(byId("latest"), ...definitions([
      ["Latest completed", ...latestOf(latest.completed,
        (one) => `${bytes(one.state_size)} in ${duration(one.end_to_end_duration)}`)],
      ["Latest failed", ...latestOf(latest.failed, (one) => one.failure_message)],
      ["Latest savepoint", ...latestOf(latest.savepoint, (one) => one.external_path)],
      ["Latest restore", ...latestOf(latest.restored,
        (one) => (one.is_savepoint ? "from a savepoint" : "from a checkpoint"))],
    ]));
    this.history = history;
    byId("no-checkpoints").hidden = history.length > 0;
    byId("older").hidden = history.length < this.shown || this.shown === SHOWN_MAX || counts.total <= this.shown;
    this.showHistory();
  }

  showHistory() {
    const rowsOf = (one) => (this.open.has(one.id) ? [{ one }, { one, detail: true }] : [{ one }]);
    const rows = this.history.flatMap(rowsOf);
    keyed(byId("history"), rows, ({ one, detail }) => (detail ? `${one.id}-detail` : one.id),
      ({ one, detail }) => (detail ? this.createDetail(one) : this.createRow(one)),
      (node, { one, detail }) => (detail ? this.updateDetail(node, one) : this.updateRow(node, one)));
  }

  createRow(one) {
    const attributes = {
      type: "button",
      class: "plain toggle",
      "aria-controls": `checkpoint-${one.id}`,
      onclick: () => this.toggle(one.id),
    };
    const toggle = element("button", attributes,
      element("span", { class: "visually-hidden" }, "Details of checkpoint "), String(one.id));
    return element("tr", {}, element("th", { scope: "row" }, toggle),
      element("td", {}, element("span", { class: "pill" }), element("span", { class: "soft" })),
      element("td", { class: "number" }), element("td", { class: "nowrap" }), element("td", { class: "nowrap" }),
      element("td", { class: "number" }), element("td", { class: "number" }), element("td", { class: "number" }));
  }

  updateRow(row, one) {
    const [id, status, acknowledged, trigger, latest, took, checkpointed, full] = row.children;
    id.firstElementChild.setAttribute("aria-expanded", this.open.has(one.id));
    setPill(status.firstElementChild, one.status);
    setText(status.lastElementChild, one.is_savepoint ? " savepoint" : "");
    setText(acknowledged, `${one.num_acknowledged_subtasks}/${one.num_subtasks}`);
    setText(trigger, time(one.trigger_timestamp));
    setText(latest, time(one.latest_ack_timestamp));
    setText(took, duration(one.end_to_end_duration));
    setText(checkpointed, bytes(one.checkpointed_size));
    setText(full, bytes(one.state_size));
  }

  async toggle(id) {
    if (this.open.has(id)) {
      this.open.delete(id);
      this.showHistory();
      return;
    }
    this.open.set(id, null);
    this.showHistory();
    // A failure is shown by the next refresh, which asks again.
    await this.refreshDetails().catch(() => {});
    this.showHistory();
  }

  /** Requests the details of open rows that are not known yet or have changed. */
  async refreshDetails() {
    const status = new Map(this.history.map((one) => [one.id, one.status]));
    for (const [id, known] of this.open) {
      if (!status.has(id)) this.open.delete(id);
      else if (known?.status !== status.get(id) || known.status === "IN_PROGRESS") {
        const detail = await get(`${this.path}/checkpoints/${id}`);
        if (this.open.has(id)) this.open.set(id, detail);
      }
    }
  }

  createDetail(one) {
    return element("tr", { class: "detail", id: `checkpoint-${one.id}` }, element("td", { colspan: COLUMNS }));
  }

  updateDetail(row, one) {
    const known = this.open.get(one.id);
    if (!known) {
      setText(row.firstElementChild, "Loading…");
      return;
    }
    setChildren(row.firstElementChild,
      element("dl", { class: "definitions wide" }, ...definitions([
        ["Path", element("code", {}, known.external_path ?? NONE)],
        ["State after batch", number(known.batch_id), `attempt ${number(known.attempt)}`],
        ["Records since the previous checkpoint", number(known.processed_data)],
        ...(known.failure_message ? [["Failure", known.failure_message, time(known.failure_timestamp)]] : []),
      ])),
      ...known.operators.map((operator) => operatorTable(one.id, operator)));
  }
}

function latestOf(one, small) {
  if (!one) return [NONE];
  const at = one.latest_ack_timestamp ?? one.failure_timestamp ?? one.restore_timestamp;
  return [`#${one.id}, ${ago(at)}`, small(one)];
}

const SUBTASK_COLUMNS = [
  ["Subtask", (one) => number(one.index)],
  ["Status", (one) => pill(one.status)],
  ["Key groups", (one) => `${one.key_group_start}–${one.key_group_end}`],
  ["Acknowledged", (one) => time(one.ack_timestamp)],
  ["End to end", (one) => duration(one.end_to_end_duration)],
  ["Start delay", (one) => duration(one.start_delay)],
  ["Sync", (one) => duration(one.checkpoint.sync)],
  ["Async", (one) => duration(one.checkpoint.async)],
  ["Checkpointed", (one) => bytes(one.checkpointed_size)],
  ["Full", (one) => bytes(one.state_size)],
  ["Entries", (one) => number(one.entries)],
  ["Files", (one) => number(one.files)],
];

function operatorTable(checkpoint, operator) {
  const title = `operator-${checkpoint}-${operator.uid}`.replaceAll(/[^\w-]/g, "_");
  const acknowledged = `${operator.num_acknowledged_subtasks}/${operator.num_subtasks} acknowledged`;
  const sizes = `${bytes(operator.checkpointed_size)} of ${bytes(operator.state_size)}`;
  const summary = `${acknowledged}, ${duration(operator.end_to_end_duration)}, ${sizes}`;
  const align = (index) => ({ class: index > 3 ? "number" : null });
  const cell = (one, show, index) =>
    (index === 0 ? element("th", { scope: "row" }, show(one)) : element("td", align(index), show(one)));
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": title },
    element("h3", { id: title }, "Operator ", element("code", {}, operator.uid), " ",
      element("span", { class: "soft" }, summary)),
    element("table", {},
      element("thead", {}, element("tr", {},
        ...SUBTASK_COLUMNS.map(([name], index) => element("th", { scope: "col", ...align(index) }, name)))),
      element("tbody", {}, ...operator.subtasks.map((one) =>
        element("tr", {}, ...SUBTASK_COLUMNS.map(([, show], index) => cell(one, show, index)))))));
}
