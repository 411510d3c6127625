// The effects of a change of a job, as they are planned before anything stops.

import { definitions, element, row } from "./dom.js";
import { bytes, duration, NONE, number, percent, plural } from "./format.js";

const FATES = { KEPT: "good", NEW: "calm", MIGRATED: "busy", NOT_DECLARED: "calm", DROPPED: "bad", INCOMPATIBLE: "bad" };

/** The figures of a plan: the driver that carries it out, downtime, bytes and files to move, skew. */
export function planFigures({ movement, downtime, rescale_mode: mode, not_live: why }) {
  const skews = movement.operators.map((one) => one.skew_ratio).filter((skew) => skew !== null);
  const files = movement.operators.flatMap((one) => one.subtasks).reduce((sum, one) => sum + one.files, 0);
  return definitions([
    ...(mode ? [["Carried out", why ? "by a new driver" : "by the running driver", why ? why.message : "between two batches"]] : []),
    ["Expected downtime", duration(downtime.expected_ms), downtime.reason ?? `by ${plural(downtime.samples_ms.length, "past change")}`],
    ["Bytes to move", bytes(movement.moved_bytes), movement.same_host
      ? `of ${bytes(movement.state_bytes)} in files, which are linked on the same host` : `of ${bytes(movement.state_bytes)} in files`],
    ["Files to open", number(files)],
    ["Largest subtask", skews.length ? percent(Math.max(...skews)) : NONE, skews.length > 1
      ? "of the average subtask's state, of the most uneven operator" : "of the average subtask's state"],
  ]);
}

const SUBTASKS_LISTED = 64;

/** The files that each new subtask opens, over all operators; nothing without state, or with very many subtasks. */
export function planBySubtask({ movement, to_parallelism: parallelism }) {
  if (!movement.operators.length || parallelism > SUBTASKS_LISTED) return [];
  const columns = ["Subtask", "Key groups", "Own state", "Downloads", "Files", "Written by subtasks"];
  const rows = Array.from({ length: parallelism }, (_, index) => {
    const parts = movement.operators.map((one) => one.subtasks[index]);
    const total = (name) => parts.reduce((sum, one) => sum + one[name], 0);
    const known = parts.every((one) => one.expected_bytes != null);
    return row([number(index), `${parts[0].key_group_start}–${parts[0].key_group_end}`,
      [known ? bytes(total("expected_bytes")) : `up to ${bytes(total("state_bytes"))}`, "number"], [bytes(total("moved_bytes")), "number"],
      [number(total("files")), "number"], [...new Set(parts.flatMap((one) => one.from_subtasks))].toSorted((a, b) => a - b).join(", ")]);
  });
  return [element("details", {}, element("summary", {}, "By subtask"), element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "By subtask" },
    element("table", {}, element("thead", {}, element("tr", {}, ...columns.map((name, index) =>
      element("th", { scope: "col", class: index > 1 && index < 5 ? "number" : null }, name)))), element("tbody", {}, ...rows))),
  element("p", { class: "hint" }, "Several subtasks open a file of a larger range; each reads only its own key groups."))];
}

/** Why a change cannot be made, one line per reason. */
function problemsOf(plan) {
  return [
    ...(plan.failure ? [plan.failure.message] : []),
    ...plan.operators.flatMap((one) => [
      ...(one.reason ? [`Operator ${one.uid} ${one.reason}.`] : []),
      ...one.states.filter((state) => state.reason).map((state) => `State ${state.name} of ${one.uid}: ${state.reason}.`),
    ]),
    ...plan.sources.filter((one) => one.reason).map((one) => `${one.reason}.`),
  ];
}

/** The names of dropped operators and sources, and of sinks with an unpublished batch. */
export const droppedBy = (plan) =>
  [...plan.operators, ...plan.sources, ...plan.sinks.filter((one) => one.reason)]
    .filter((one) => one.fate === "DROPPED").map((one) => one.uid);

/** The whole plan: a verdict, the fate of each state, the settings that change, and the figures. */
export function planParts(plan) {
  return [verdict(plan), element("dl", { class: "definitions" }, ...planFigures(plan)), ...fates(plan), ...settings(plan), ...planBySubtask(plan)];
}

function verdict(plan) {
  const problems = problemsOf(plan);
  if (problems.length) {
    return element("div", { class: "notice", "data-tone": "bad" }, element("strong", {}, "This change cannot be made. "),
      ...problems.map((text) => element("div", { class: "said" }, text)),
      plan.failure?.traceback
        ? element("details", { open: true }, element("summary", {}, "Traceback"), element("pre", { tabindex: 0 }, plan.failure.traceback))
        : "");
  }
  const dropped = droppedBy(plan);
  if (dropped.length) {
    return element("div", { class: "notice", "data-tone": "bad" }, element("strong", {}, "State would be lost: "),
      `the new program has no ${dropped.join(", ")}. Nothing happens unless you allow it below.`);
  }
  const loaded = plan.program_loaded ? "The program was run up to env.execute(), and " : "";
  return element("div", { class: "notice", "data-tone": "good" }, element("strong", {}, "This change can be made. "),
    `${loaded}${loaded ? "all" : "All"} state that is stored can be taken over. Nothing has been changed yet.`);
}

const fatePill = (fate) => element("span", { class: "pill", dataset: { tone: FATES[fate] ?? "calm" } }, fate);

function fates({ operators, sources, sinks }) {
  if (!operators.length && !sources.length && !sinks.length) return [];
  const rows = [
    ...sources.map((one) => [one.uid, "source", fatePill(one.fate), one.kind ?? NONE]),
    ...operators.flatMap((one) => one.states.length
      ? one.states.map((state) => [`${one.uid} / ${state.name}`, state.kind, fatePill(state.fate), formOf(state)])
      : [[one.uid, "operator", fatePill(one.fate), "no state"]]),
    ...sinks.map((one) => [one.uid, "sink", fatePill(one.fate), one.kind ?? NONE]),
  ];
  return [table("What happens to the state", ["Of", "Kind", "Fate", "Form"],
    rows.map(([of, kind, fate, form]) => row([[of, "mono"], kind, fate, form])))];
}

function formOf({ stored, declared, rules, ttl_ms: ttl }) {
  const form = stored && declared && stored !== declared ? `${stored} → ${declared}` : declared ?? stored ?? NONE;
  const more = [...rules, ...(ttl ? [`lives for ${duration(ttl)}`] : [])];
  return element("span", {}, element("code", {}, form), more.length ? element("small", { class: "why soft" }, more.join("; ")) : "");
}

function settings({ settings: changed }) {
  if (!changed.length) return [];
  return [table("Settings that change", ["Setting", "Now", "Then"], changed.map((one) =>
    row([[one.name === "artifact_id" ? "program" : one.name, "mono"], [shownSetting(one.name, one.before), "mono"], [shownSetting(one.name, one.after), "mono"]])))];
}

const shownSetting = (name, value) => (value === null ? NONE : /_ms$/.test(name) ? duration(Number(value)) : value);

function table(title, columns, rows) {
  return element("div", {}, element("h3", {}, title),
    element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title },
      element("table", {}, element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)))),
        element("tbody", {}, ...rows))));
}
