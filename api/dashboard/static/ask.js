// Asks once before something that cannot be taken back, or that stops work.

import { element } from "./dom.js";

/**
 * Shows a question and waits for the answer.
 * @param {{title: string, text: string, action: string, keep?: string}} question `text` says what will happen.
 * @returns {Promise<boolean>} whether the user agreed
 */
export function ask({ title, text, action, keep = "Keep it as it is" }) {
  return new Promise((resolve) => {
    const dialog = element("dialog", { "aria-labelledby": "ask-head" },
      element("form", { method: "dialog" },
        element("h2", { id: "ask-head" }, title), element("p", {}, text),
        element("div", { class: "actions" },
          element("button", { value: "keep", autofocus: true }, keep),
          element("button", { value: "act", class: "danger" }, action))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "act");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
