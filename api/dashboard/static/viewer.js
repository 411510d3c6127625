// The user of the page: buttons that would be refused for the role are not shown.

import { get } from "./api.js";
import { byId, setText } from "./dom.js";
import { words } from "./dom.js";

const RANKS = ["VIEWER", "OPERATOR", "ADMIN"];
let known = null;

/** The user who is signed in; read once per page. */
export async function viewer() {
  if (!known) {
    known = await get("/v1/whoami");
    setText(byId("viewer"), `${known.name} · ${words(known.role)}`);
  }
  return known;
}

/** Whether the viewer has at least this role. */
export const mayActAs = (user, role) => RANKS.indexOf(user.role) >= RANKS.indexOf(role);
