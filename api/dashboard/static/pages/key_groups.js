// A heat map of the state by key group, over the subtasks that own the groups now or at another parallelism.

import { get } from "../api.js";
import { byId, element, row, setChildren, setText } from "../dom.js";
import { showFieldProblems } from "../field_problems.js";
import { bytes, number, percent } from "../format.js";
import { jobPage, path } from "../job_page.js";
import { drawHistory } from "../key_group_history.js";
import { ownerOf, rangesOf } from "../key_group_ranges.js";
import { newestCheckpoint } from "../newest_checkpoint.js";

const MEASURES = { bytes: ["Bytes", "key_group_bytes", bytes], entries: ["Entries", "key_group_entries", number] };
const HOTTEST = 10, LEVELS = 8;
const query = new URLSearchParams(location.search);
let known = { detail: null, past: null };
let last = null;

for (const [name, [label]] of Object.entries(MEASURES)) {
  byId("measures").append(element("button", { type: "button", dataset: { name }, onclick: () => setQuery("measure", name) }, label));
}
showFieldProblems(byId("choices"));
byId("operator").addEventListener("change", () => setQuery("operator", byId("operator").value));
byId("at-parallelism").addEventListener("input", () => {
  const field = byId("at-parallelism");
  if (field.validity.valid) setQuery("parallelism", field.value);
});

jobPage(async () => {
  const detail = await newestCheckpoint();
  if (detail !== known.detail) known = { detail, past: detail === null ? null : await get(`${path}/key-groups`) };
  return known;
}, (job, { detail, past }) => {
  last = [job, detail, past];
  show(...last);
}, ["checkpoints"], 3000);

function setQuery(name, value) {
  if (value) query.set(name, value);
  else query.delete(name);
  history.replaceState(null, "", `${location.pathname}?${query}`);
  if (last) show(...last);
}

function show(job, checkpoint, past) {
  const operators = (checkpoint?.operators ?? []).filter((one) => one.subtasks.some((part) => part.key_group_bytes.length));
  const none = byId("no-key-groups");
  none.hidden = operators.length > 0;
  setText(none, checkpoint ? "The latest checkpoint has no sizes of single key groups." : "No completed checkpoint yet.");
  byId("hottest-panel").hidden = operators.length === 0;
  if (!operators.length) byId("over-time").hidden = true;
  showChoices(job, operators);
  const operator = operators.find((one) => one.uid === query.get("operator")) ?? operators[0];
  setText(byId("heat-note"), checkpoint ? `At ${checkpoint.is_savepoint ? "savepoint" : "checkpoint"} #${checkpoint.id}` : "");
  if (!operator) {
    setChildren(byId("heat"));
    setText(byId("legend"), "");
    return;
  }
  const measure = MEASURES[query.get("measure")] ? query.get("measure") : "bytes";
  for (const button of byId("measures").children) button.setAttribute("aria-pressed", button.dataset.name === measure);
  const groups = groupsOf(operator), largest = largestOf(operator);
  const parallelism = Math.min(Math.max(Number(query.get("parallelism")) || job.spec.parallelism, 1), job.spec.max_parallelism);
  const ranges = rangesOf(operator.subtasks, job.spec.max_parallelism, parallelism);
  showHeat(groups, ranges, measure);
  showHottest(largest, groups, ranges);
  const series = past?.operators.find((one) => one.uid === operator.uid);
  byId("over-time").hidden = !series || series.at_ms.length < 2;
  if (!byId("over-time").hidden) drawHistory(series, measure, past.group_width, largest);
}

function showChoices(job, operators) {
  const choice = byId("operator");
  setChildren(choice, ...operators.map((one) => element("option", { value: one.uid }, one.uid)));
  choice.value = operators.some((one) => one.uid === query.get("operator")) ? query.get("operator") : operators[0]?.uid ?? "";
  const field = byId("at-parallelism");
  field.max = job.spec.max_parallelism;
  if (document.activeElement !== field) field.value = query.get("parallelism") ?? job.spec.parallelism;
  setText(byId("at-hint"), `The job's parallelism is ${number(job.spec.parallelism)}. Another number shows its ranges${job.spec.key_group_division === "BY_SIZE" ? " by count; the page Rescale plans them by size" : ""}.`);
}

/** Bytes and entries of every key group, by its number. */
function groupsOf(operator) {
  return operator.subtasks.flatMap((part) => part.key_group_bytes.map((size, index) => ({
    keyGroup: part.key_group_start + index, bytes: size, entries: part.key_group_entries[index] ?? 0,
  })));
}

function showHeat(groups, ranges, measure) {
  const [, , shown] = MEASURES[measure];
  const most = Math.max(1, ...groups.map((group) => group[measure]));
  const sums = ranges.map(() => 0);
  for (const group of groups) sums[ownerOf(group.keyGroup, ranges)] += group[measure];
  const whole = sums.reduce((sum, part) => sum + part, 0);
  const mean = whole / ranges.length;
  setChildren(byId("heat"), ...ranges.map(([start, end], index) => {
    const cells = groups.filter((group) => group.keyGroup >= start && group.keyGroup <= end).map((group) =>
      element("i", { "data-level": Math.ceil((LEVELS * group[measure]) / most), title: `key group ${group.keyGroup}: ${shown(group[measure])}` }));
    return element("div", { class: "heat-row", role: "listitem" },
      element("span", { class: "heat-name" }, element("strong", {}, `Subtask ${index}`),
        element("span", { class: "soft" }, ` groups ${start}–${end}`)),
      element("span", { class: "heat-cells", "aria-hidden": "true" }, ...cells),
      element("span", { class: "heat-sum number" }, shown(sums[index]),
        element("small", { class: "soft" }, whole ? ` ${percent(sums[index] / whole)}` : "")));
  }));
  const skew = mean ? Math.max(...sums) / mean : 1;
  setChildren(byId("legend"),
    `A stronger colour means more. The largest subtask has ${percent(skew)} of the average.`);
}

/** The key groups that are surely the largest, the largest first. A size without entries is the least that it may be. */
function largestOf(operator) {
  return operator.subtasks.flatMap((part) => part.largest_key_groups)
    .toSorted((one, other) => other.size_bytes - one.size_bytes).slice(0, HOTTEST);
}

function showHottest(largest, groups, ranges) {
  setText(byId("owner"), `Subtask at ${number(ranges.length)}`);
  byId("hottest-scroll").hidden = largest.length === 0;
  byId("no-hottest").hidden = largest.length > 0;
  const whole = groups.reduce((sum, group) => sum + group.bytes, 0) || 1;
  setChildren(byId("hottest"), ...largest.map(({ key_group: keyGroup, size_bytes: size, entries }) => {
    const least = entries === null ? "at least " : "";
    return row([
      number(keyGroup), [number(ownerOf(keyGroup, ranges)), "number"],
      [least + bytes(size), "number"], [number(entries), "number"], [least + percent(size / whole), "number"],
    ]);
  }));
}
