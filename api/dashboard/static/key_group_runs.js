// Runs of neighbouring key groups that the estimates of their sizes cannot tell apart.

/**
 * Merges neighbouring key groups of a subtask that lie in the same files: a file that spans several key groups counts
 * evenly for each, so such groups have the same estimate, but for the rest of a division in each file.
 * @param {{keyGroup: number, bytes: number, entries: number, files: number, subtask: number}[]} groups in order
 * @returns {{start: number, end: number, bytes: number, entries: number}[]} the largest estimate of a group first
 */
export function runsOf(groups) {
  const runs = [];
  for (const { keyGroup, bytes, entries, files, subtask } of groups) {
    const before = runs.at(-1);
    const isSame = before?.subtask === subtask && before.end === keyGroup - 1
      && Math.abs(before.first - bytes) <= files;
    if (isSame) {
      before.end = keyGroup;
      before.sums[0] += bytes;
      before.sums[1] += entries;
    } else {
      runs.push({ start: keyGroup, end: keyGroup, subtask, first: bytes, sums: [bytes, entries] });
    }
  }
  return runs.map(({ start, end, sums }) => {
    const [bytes, entries] = sums.map((sum) => Math.round(sum / (end - start + 1)));
    return { start, end, bytes, entries };
  }).toSorted((one, other) => other.bytes - one.bytes);
}
