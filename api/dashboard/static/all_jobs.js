// All jobs of the API, page by page.

import { get } from "./api.js";

/** The jobs that the viewer may see. */
export async function allJobs() {
  const found = [];
  for (let after = ""; after !== null;) {
    const answer = await get(`/v1/jobs?limit=500${after && `&after=${encodeURIComponent(after)}`}`);
    found.push(...answer.jobs);
    after = answer.next;
  }
  return found;
}
