// Key groups, and the subtasks that own them.

/** The key groups of each subtask: [start, end], inclusive, as the runtime assigns them. */
export function keyGroupRanges(maxParallelism, parallelism) {
  return Array.from({ length: parallelism }, (_, index) => [
    Math.ceil((index * maxParallelism) / parallelism),
    Math.floor(((index + 1) * maxParallelism - 1) / parallelism),
  ]);
}

/** The subtask that owns a key group. */
export const ownerOf = (keyGroup, maxParallelism, parallelism) =>
  Math.floor((keyGroup * parallelism) / maxParallelism);
