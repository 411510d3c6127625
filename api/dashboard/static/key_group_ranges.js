// Key groups, and the subtasks that own them.

/** The key groups of each subtask, divided by count: [start, end], inclusive, as the runtime divides them. */
export function keyGroupRanges(maxParallelism, parallelism) {
  return Array.from({ length: parallelism }, (_, index) => [
    Math.ceil((index * maxParallelism) / parallelism),
    Math.floor(((index + 1) * maxParallelism - 1) / parallelism),
  ]);
}

/** The key groups of each subtask as `parts` has them, such as the subtasks of a checkpoint; by count if it has others. */
export const rangesOf = (parts, maxParallelism, parallelism) => parts?.length === parallelism
  ? parts.map((part) => [part.key_group_start, part.key_group_end]) : keyGroupRanges(maxParallelism, parallelism);

/** The subtask that owns a key group. */
export const ownerOf = (keyGroup, ranges) => ranges.findIndex(([start, end]) => keyGroup >= start && keyGroup <= end);
