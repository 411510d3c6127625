// The recent batches of a job: the parts of each bar add up to the time since the previous batch.

import { element, setChildren, when } from "./dom.js";
import { duration, number } from "./format.js";

/**
 * Draws the bars, the newest batch first.
 * @param {Element} list
 * @param {Element} legend
 * @param {{name: string, label: string}[]} parts as the platform declares them
 * @param {object[]} batches the oldest first
 */
export function drawBatches(list, legend, parts, batches) {
  const longest = Math.max(1, ...batches.map((batch) => durationOf(batch, parts)));
  setChildren(legend, ...parts.map(({ name, label }) => element("li", { "data-part": name }, label)));
  setChildren(list, ...batches.toReversed().map((batch) => row(batch, parts, longest)));
}

const durationOf = (batch, parts) => parts.reduce((total, { name }) => total + batch[name], 0);

function row(batch, parts, longest) {
  const total = durationOf(batch, parts);
  const known = parts.filter(({ name }) => batch[name] > 0).map(({ name, label }) => [name, `${label} ${duration(batch[name])}`]);
  const bar = element("div", { class: "batch-bar", role: "img", "aria-label": known.map(([, text]) => text).join(", ") },
    ...known.map(([name, text]) => {
      const part = element("span", { "data-part": name, title: text });
      part.style.flexGrow = batch[name];
      return part;
    }));
  bar.style.width = `${(100 * total) / longest}%`;
  return element("tr", { "data-key": batch.batch_id },
    element("th", { scope: "row", class: "number" }, number(batch.batch_id)),
    element("td", {}, when(batch.at_ms)),
    element("td", { class: "number" }, number(batch.input_records)),
    element("td", { class: "number" }, duration(total)),
    element("td", {}, bar));
}
