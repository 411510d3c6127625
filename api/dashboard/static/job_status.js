// The statuses of a job, as pages tell them apart.

/** The statuses of a job that has no driver and wants none. */
export const ENDED = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);

/** The kinds of operations that replace the driver of a running job. */
export const CHANGES = document.body.dataset.changes.split(" ");

/** Whether an operation replaces the job's driver now. */
export const isChanging = (job) => CHANGES.includes(job.status.operation?.kind);

/** Whether the job's driver takes snapshots and rescales; a sleeping job wakes for them. */
export const takesOperations = (job) => job.status.state === "RUNNING" || job.status.state === "SLEEPING";

/** Since when a sleeping job sleeps, and what wakes it. */
export const sleepOf = (job) => job.status.conditions.find(({ type, reason }) => type === "RUNNING" && reason === "SLEEPING");

/** Whether the number of waiting records is of an earlier time: no driver reports, or the sources do not answer. */
export const isLagOld = ({ metrics, status: { attempt } }) => metrics.lag_records !== null
  && (metrics.input_rate === null || metrics.lag_records_at_ms < attempt?.heartbeat_at_ms);
