// Builds and updates a page. Text always becomes a text node, so no name or message can become markup.

import { ago, isDate, NONE, time, utc } from "./format.js";

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
    else if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
      listening.add(node);
    }
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
 * Makes a node's children look like the given ones, and keeps the nodes that are alike: focus and open details stay.
 * A node is alike if it has the same tag and the same `data-key`; one with a listener of its own also the same content.
 * @param {Element} parent
 * @param {...(Node|string)} children
 */
export function setChildren(parent, ...children) {
  matchChildren(parent, element("div", {}, ...children));
}

function matchChildren(parent, wanted) {
  let place = parent.firstChild;
  for (const next of Array.from(wanted.childNodes)) {
    if (place && isAlike(place, next)) {
      match(place, next);
      place = place.nextSibling;
    } else if (place) {
      const old = place;
      place = place.nextSibling;
      old.replaceWith(next);
    } else {
      parent.append(next);
    }
  }
  while (place) {
    const old = place;
    place = place.nextSibling;
    old.remove();
  }
}

function isAlike(old, next) {
  if (old.nodeName !== next.nodeName || old.dataset?.key !== next.dataset?.key) return false;
  return listening.has(next) ? old.isEqualNode(next) : !listening.has(old);
}

function match(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  // What the user has opened stays open, and what was closed stays closed.
  const isUsers = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name, value } of next.attributes) {
    if (!isUsers(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of Array.from(old.attributes)) if (!isUsers(name) && !next.hasAttribute(name)) old.removeAttribute(name);
  if (next.style?.length || old.style?.length) old.style.cssText = next.style.cssText;
  if (!listening.has(old)) matchChildren(old, next);
}

/** Nodes with a listener of their own, which speaks of the content that they were made with. @type {WeakSet<Node>} */
const listening = new WeakSet();

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
  SUBMITTING: "busy", SAVEPOINTING: "busy", STOPPING: "busy", RESCALING: "busy", UPGRADING: "busy", RESTARTING: "busy",
  IN_PROGRESS: "busy", PENDING_APPROVAL: "busy",
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

/** An instant in the viewer's zone; the exact time in UTC appears on hover. */
export function when(atMs, shown = time(atMs)) {
  if (!isDate(atMs)) return NONE;
  return element("time", { datetime: new Date(atMs).toISOString(), title: utc(atMs) }, shown);
}

/** How long ago an instant was; the exact time in UTC appears on hover. */
export const since = (atMs) => when(atMs, ago(atMs));

/** The entries of a description list, each from `[label, value, small print]`. */
export function definitions(pairs) {
  return pairs.map(([label, value, small]) =>
    element("div", {}, element("dt", {}, label),
      element("dd", {}, value, small ? element("small", {}, small) : null)));
}

/** A table's row, from `[content, class]` or content alone; the first cell is the row's header. */
export function row(cells, attributes = {}) {
  return element("tr", attributes, ...cells.map((cell, index) => {
    const [content, name] = Array.isArray(cell) ? cell : [cell, null];
    return element(index ? "td" : "th", { scope: index ? null : "row", class: name }, content);
  }));
}

/** A button that acts: it can be refused with a reason, and is refused while the control plane does not answer. */
export function actionButton(label, onclick, attributes = {}) {
  const button = element("button", { type: "button", "data-acts": true, onclick, ...attributes }, label);
  applyRefusal(button); // a page that is drawn again every second also makes its buttons while the control plane is unavailable
  return button;
}

/** Allows a button, or refuses it and says why. @param {HTMLButtonElement} button @param {string} reason */
export function setRefused(button, reason = "") {
  button.dataset.acts = reason;
  applyRefusal(button);
}

/** Refuses every action while the control plane does not answer. */
export function setAway(isAway) {
  if (document.body.hasAttribute("data-away") === isAway) return;
  document.body.toggleAttribute("data-away", isAway);
  for (const button of document.querySelectorAll("[data-acts]")) applyRefusal(button);
}

function applyRefusal(button) {
  const reason = document.body.hasAttribute("data-away") ? "The control plane does not answer." : button.dataset.acts;
  button.disabled = Boolean(reason);
  button.title = reason;
}

/** Shows the result of an action, or why it was refused. @param {string} text @param {string} tone @param {Node|string} more behind it */
export function tell(text, tone = "calm", more = "") {
  const line = byId("message");
  line.hidden = !text;
  line.dataset.tone = tone;
  setChildren(line, text.trim(), ...(more ? [" ", more] : []));
}

/** Removes a message that no longer applies, unless another message has replaced it. */
export function untell(text) {
  if (byId("message").textContent === text) tell("");
}

/** The parts of a text with commands between backticks. */
export const prose = (text) =>
  text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));

/** Copies a location, and says so. */
export async function copyText(location) {
  await navigator.clipboard.writeText(location);
  tell("The location is copied.", "good");
}

/** A button that copies a location. */
export const copyButton = (location) =>
  element("button", { type: "button", class: "plain", title: location, onclick: () => copyText(location) }, "Copy the location");

/** A location, with a button that copies it. */
export function copyable(location) {
  if (!location) return NONE;
  const button = element("button", { type: "button", class: "plain", onclick: () => copyText(location) }, "Copy");
  return element("span", { class: "copyable" }, element("code", {}, location), " ", button);
}
