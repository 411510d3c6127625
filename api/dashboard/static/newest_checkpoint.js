// The newest checkpoint of the job whose page this is.

import { get } from "./api.js";
import { path } from "./job_page.js";

let known = { id: null, detail: null };

/** The newest completed checkpoint or savepoint, with its subtasks; null before the first. It is read once. */
export async function newestCheckpoint() {
  const { latest: { completed, savepoint } } = await get(`${path}/checkpoints?limit=1`);
  const newest = completed && savepoint ? (savepoint.id > completed.id ? savepoint : completed) : completed ?? savepoint;
  const id = newest?.id ?? null;
  if (id !== known.id) known = { id, detail: id === null ? null : await get(`${path}/checkpoints/${id}`) };
  return known.detail;
}
