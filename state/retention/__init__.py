"""Retention: which files are no longer needed, and their deletion."""
