// Long lists are shown a page at a time. The address holds the page's place, so it can be linked and gone back to.

import { byId } from "./dom.js";

const query = new URLSearchParams(location.search);

/** The query of the API for the page that the address names. */
export function pageQuery(limit) {
  const after = query.get("after");
  return `limit=${limit}${after ? `&after=${encodeURIComponent(after)}` : ""}`;
}

/** Whether the address names the first page. */
export const isFirstPage = () => !query.has("after");

/** Shows the links to the first and the next page. @param {string | null} next of the API's answer */
export function showPages(next) {
  const newest = byId("newest"), older = byId("older");
  newest.hidden = isFirstPage();
  newest.href = addressOf(null);
  older.hidden = !next;
  if (next) older.href = addressOf(next);
}

/** The address of another page of the same list, with its filter. @param {string | null} after */
function addressOf(after) {
  const other = new URLSearchParams(query);
  other.delete("after");
  if (after) other.set("after", after);
  const text = other.toString();
  return location.pathname + (text && `?${text}`);
}
