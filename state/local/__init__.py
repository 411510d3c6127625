"""A subtask's files on this host: their place, holder and validity."""
