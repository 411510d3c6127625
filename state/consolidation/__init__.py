"""Consolidation: rewrites a subtask's shards as a single shard, in the background."""
