"""Restores a subtask: plans what it needs, and rebuilds its shards."""
