"""Snapshots of subtasks: hard links on this host, uploaded to the store."""
