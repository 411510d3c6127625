// The statuses of a job, as pages tell them apart.

/** The statuses of a job that has no driver and wants none. */
export const ENDED = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);
