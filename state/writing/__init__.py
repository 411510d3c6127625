"""Writes savepoints from rows, as sorted files."""
