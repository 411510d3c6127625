"""A subtask's files on this host: where they are, who holds them, and whether they can be used again."""
