// Builds and updates the page. Text always becomes a text node, so no name or message can become markup.

/**
 * Creates an element.
 * @param {string} tag
 * @param {Object<string, unknown>} attributes `class`, `dataset` and listeners (`onclick`) included; null and false are
 *   omitted.
 * @param {...(Node|string|number|null)} children
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "dataset") Object.assign(node.dataset, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  const shownChildren = children.filter((child) => child !== null);
  node.append(...shownChildren.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Sets a node's text if it differs, so that screen readers do not repeat it and a selection stays. */
export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = String(text);
}

/**
 * Replaces a node's children unless they would look the same. Without a change, focus and open details stay.
 * @param {Element} parent
 * @param {...(Node|string)} children
 */
export function setChildren(parent, ...children) {
  const next = element("div", {}, ...children);
  const looks = next.innerHTML;
  if (shown.get(parent) === looks) return;
  shown.set(parent, looks);
  parent.replaceChildren(...next.childNodes);
}

/** The last content of each parent. @type {WeakMap<Element, string>} */
const shown = new WeakMap();

/**
 * Makes `parent`'s children match `items`, one node per item. The node of an item that stays is kept.
 * @template Item
 * @param {Element} parent
 * @param {Item[]} items
 * @param {(item: Item) => string} key
 * @param {(item: Item) => Element} create
 * @param {(node: Element, item: Item) => void} update
 */
export function keyed(parent, items, key, create, update) {
  const wanted = new Set(items.map((item) => String(key(item))));
  const old = new Map();
  for (const node of Array.from(parent.children)) {
    if (wanted.has(node.dataset.key)) old.set(node.dataset.key, node);
    else node.remove();
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let node = old.get(name);
    if (!node) {
      node = create(item);
      node.dataset.key = name;
    }
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
}

const TONES = {
  RUNNING: "good", COMPLETED: "good", FINISHED: "good",
  FAILED: "bad", ROLLED_BACK: "bad",
  SUBMITTING: "busy", SAVEPOINTING: "busy", STOPPING: "busy", RESCALING: "busy", RESTARTING: "busy",
  IN_PROGRESS: "busy",
};

/** A status as a word with a colour; the word alone is enough. */
export function pill(status) {
  return element("span", { class: "pill", dataset: { tone: TONES[status] ?? "calm" } }, words(status));
}

/** Shows a status in a pill that is on the page already. */
export function setPill(node, status) {
  node.hidden = !status;
  node.dataset.tone = TONES[status] ?? "calm";
  setText(node, words(status ?? ""));
}

/** IN_PROGRESS becomes In progress. */
export function words(constant) {
  const text = String(constant).replaceAll("_", " ").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The entries of a description list, each from `[label, value, small print]`. */
export function definitions(pairs) {
  return pairs.map(([label, value, small]) =>
    element("div", {}, element("dt", {}, label),
      element("dd", {}, value, small ? element("small", {}, small) : null)));
}
