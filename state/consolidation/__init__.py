"""Consolidation: rewriting a subtask's shards as a single one, in the background, without the key groups of others."""
