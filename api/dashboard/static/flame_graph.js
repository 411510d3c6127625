// A flame graph: functions above their callers' parts, as wide as their share of the samples.

import { element, setChildren } from "./dom.js";
import { number, percent, plural } from "./format.js";

const ROW_REM = 1.4;
/** Narrower functions are left out: they could be neither read nor hit. */
const SHARE_MIN = 0.003;
/** Functions of the platform and of Spark; the rest are the job's own and what they call. */
const OF_PLATFORM = /\((keyscale|pyspark|py4j|<frozen)/;

/**
 * Returns the tree of functions of some processes.
 * @param {{name: string, text: string}[]} parts stacks per process, as `outermost;…;innermost count` lines
 */
export function callTree(parts) {
  const root = newCall("All workers");
  for (const { name, text } of parts) {
    for (const [, stack, count] of text.matchAll(/^(.+) (\d+)$/gm)) add(root, [name, ...stack.split(";")], Number(count));
  }
  return root;
}

const newCall = (name) => ({ name, count: 0, calls: new Map() });

function add(root, stack, count) {
  let call = root;
  call.count += count;
  for (const name of stack) {
    if (!call.calls.has(name)) call.calls.set(name, newCall(name));
    call = call.calls.get(name);
    call.count += count;
  }
}

/** Draws a tree; a click on a function shows its part alone, a click on the first row shows everything again. */
export function drawFlameGraph(container, tree, shown = tree) {
  const callers = shown === tree ? [tree] : [tree, shown];
  const frames = callers.map((call, row) => frame(call, row, 0, 1));
  let rows = callers.length;
  function below(call, row, left) {
    let at = left;
    for (const each of [...call.calls.values()].sort((one, other) => other.count - one.count)) {
      const width = each.count / shown.count;
      if (width >= SHARE_MIN) {
        rows = Math.max(rows, row + 1);
        frames.push(frame(each, row, at, width));
        below(each, row + 1, at);
      }
      at += width;
    }
  }
  function frame(call, row, left, width) {
    const share = percent(call.count / tree.count);
    const node = element("button", {
      type: "button",
      title: `${call.name}: ${share} of the samples (${number(call.count)})`,
      dataset: { kind: row > 1 && !OF_PLATFORM.test(call.name) ? "own" : "platform" },
      onclick: () => drawFlameGraph(container, tree, call),
    }, row === 0 ? `${call.name}: ${plural(call.count, "sample")}` : call.name);
    Object.assign(node.style, { left: `${100 * left}%`, width: `${100 * width}%`, top: `${ROW_REM * row}rem` });
    return node;
  }
  below(shown, rows, 0);
  container.style.height = `${ROW_REM * rows}rem`;
  setChildren(container, ...frames);
}
