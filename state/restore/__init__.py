"""Restoring a subtask: `plan` decides what it needs, `rebuild` carries the plan out, `opened_shards` is the result."""
