// Says beneath a field why it cannot be used, while it is filled in: of a number at once, of a text after a short rest.

import { element, setText } from "./dom.js";
import { number } from "./format.js";

/** An unfinished text is not refused. When a field loses the focus, the page must not move: a click would miss. */
const REST_MS = 400;

/**
 * Watches the fields of a form.
 * @param {Element} form
 * @param {Object<string, (text: string) => string>} checks by the field's id: the problem of its text, or an empty string
 * @returns {() => void} forgets all problems, after the fields have got new values
 */
export function showFieldProblems(form, checks = {}) {
  /** The timers of texts that are being written. @type {Map<Element, number>} */
  const rests = new Map();
  form.addEventListener("input", ({ target: field }) => {
    field.setCustomValidity(checks[field.id]?.(field.value) ?? "");
    clearTimeout(rests.get(field));
    if (field.type === "number" || field.validity.valid) show(field, problemOf(field));
    else rests.set(field, setTimeout(() => show(field, problemOf(field)), REST_MS));
  });
  return () => {
    for (const timer of rests.values()) clearTimeout(timer);
    for (const field of form.querySelectorAll("[aria-invalid]")) {
      field.setCustomValidity("");
      show(field, "");
    }
  };
}

function problemOf(field) {
  const { validity, min, max, step } = field;
  if (validity.valid) return "";
  if (validity.customError) return field.validationMessage;
  if (validity.patternMismatch) return "Use only letters, digits, dots, dashes and underscores; begin with a letter or a digit.";
  if (field.type === "number") {
    const kind = step === "any" ? "number" : "whole number";
    return max ? `Enter a ${kind} from ${number(min)} to ${number(max)}.` : `Enter a ${kind} of at least ${min}.`;
  }
  return validity.valueMissing ? "This field is required." : field.validationMessage;
}

function show(field, problem) {
  const id = `${field.id}-problem`;
  let line = document.getElementById(id);
  if (!line && !problem) return;
  if (!line) {
    line = element("p", { id, class: "hint refused", "aria-live": "polite" });
    field.closest("div, form").append(line);
  }
  setText(line, problem);
  line.hidden = !problem;
  if (problem) {
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", id);
  } else {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
}
