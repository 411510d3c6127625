// Asks once before something that stops work or cannot be taken back.

import { element } from "./dom.js";

/**
 * Shows a question and waits for the answer.
 * @param {{title: string, text: string, action: string, keep?: string, danger?: boolean, fields?: Element[]}} question
 *   `text` says what will happen, and whether it can be undone; `fields` are inputs with names, for a choice.
 * @returns {Promise<FormData|null>} the fields if the user agreed, else null
 */
export function ask({ title, text, action, keep = "Keep it as it is", danger = true, fields = [] }) {
  return new Promise((resolve) => {
    const form = element("form", { method: "dialog" },
      element("h2", { id: "ask-head" }, title), element("p", { id: "ask-text" }, text),
      ...(fields.length ? [element("div", { class: "form ask-fields" }, ...fields)] : []),
      element("div", { class: "actions" },
        element("button", { value: "keep", autofocus: true, formnovalidate: true }, keep),
        element("button", { value: "act", "data-acts": true, class: danger ? "danger" : "primary" }, action)));
    const dialog = element("dialog", { "aria-labelledby": "ask-head", "aria-describedby": "ask-text" }, form);
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "act" ? new FormData(form) : null;
      dialog.remove();
      resolve(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A group of choices of which one is taken; the first one unless `chosen` says otherwise. */
export function choice(name, legend, options, chosen = options[0][0]) {
  return element("fieldset", {}, element("legend", {}, legend), ...options.map(([value, label, small]) =>
    element("label", { class: "check" }, element("input", { type: "radio", name, value, checked: value === chosen }),
      element("span", {}, label, small ? element("small", { class: "soft why" }, small) : ""))));
}
