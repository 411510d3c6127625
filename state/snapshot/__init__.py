"""A subtask's snapshot: hard links on this host, uploaded to the object store."""
