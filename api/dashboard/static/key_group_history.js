// Key groups over time: a heat map on a canvas, and the largest ones as lines.

import { drawChart } from "./charts.js";
import { byId, setText } from "./dom.js";
import { bytes, number, plural, time } from "./format.js";

const LINES = 3, ROW_PX = 2, LEAST_PX = 96;
let drawn = "";
/** The operator of the history on the canvas, for the pointer, and how it is drawn. */
let on = null;

/**
 * Draws the history of one operator.
 * @param {{at_ms: number[], bytes: number[][], entries: number[][]}} operator of the API, the oldest first
 * @param {"bytes"|"entries"} measure @param {number} width of a group of key groups, which have one value together
 * @param {{key_group: number}[]} known the key groups that are surely the largest, the largest first
 */
export function drawHistory(operator, measure, width, known) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const content = JSON.stringify([operator.uid, operator.at_ms.at(-1), operator.at_ms.length, measure, dark]);
  if (drawn === content) return;
  drawn = content;
  const values = operator[measure];
  const rows = Math.max(...values.map((one) => one.length));
  const most = Math.max(1, ...values.flat());
  on = { operator, measure, width, rows };
  const canvas = byId("history");
  canvas.width = values.length;
  canvas.height = rows;
  canvas.style.height = `${Math.max(LEAST_PX, rows * ROW_PX)}px`;
  const paint = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  paint.fillStyle = style.getPropertyValue("--sunken");
  paint.fillRect(0, 0, values.length, rows);
  paint.fillStyle = style.getPropertyValue("--accent");
  values.forEach((column, x) => column.forEach((value, y) => {
    paint.globalAlpha = value ? 0.12 + (0.88 * value) / most : 0;
    paint.fillRect(x, y, 1, 1);
  }));
  const shown = measure === "bytes" ? bytes : number;
  const largest = [...new Set(known.map((one) => Math.floor(one.key_group / width)))].slice(0, LINES);
  canvas.setAttribute("aria-label", `Key groups over time, ${plural(values.length, "checkpoint")}.`
    + (largest.length ? ` Largest now: ${largest.map((row) => `${nameOf(row, width)} with ${shown(values.at(-1)[row])}`).join(", ")}` : ""));
  setText(byId("history-note"), "Point at a place to see its key group and size.");
  byId("charts").hidden = largest.length === 0;
  if (!largest.length) return;
  drawChart("Largest key groups", {
    kind: measure === "bytes" ? "bytes" : "number",
    lines: largest.map((row) => ({ name: nameOf(row, width), points: operator.at_ms.map((at, index) => [at, values[index][row] ?? null]) })),
  });
}

const nameOf = (row, width) => (width === 1 ? `Group ${row}` : `Groups ${row * width}–${row * width + width - 1}`);

byId("history").addEventListener("pointermove", (event) => {
  if (!on) return;
  const { operator, measure, width, rows } = on;
  const x = Math.min(operator.at_ms.length - 1, Math.floor((event.offsetX / event.target.clientWidth) * operator.at_ms.length));
  const y = Math.min(rows - 1, Math.floor((event.offsetY / event.target.clientHeight) * rows));
  const value = operator[measure][x]?.[y];
  setText(byId("history-note"), `${nameOf(y, width)} at ${time(operator.at_ms[x])}: ${measure === "bytes" ? bytes(value) : (value === 1 ? "1 entry" : `${number(value)} entries`)}`);
});
