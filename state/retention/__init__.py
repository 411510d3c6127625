"""Retention: the files that no retained checkpoint needs, and their deletion."""
