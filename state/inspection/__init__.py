"""Reads checkpoints without their job, and writes migrated savepoints."""
