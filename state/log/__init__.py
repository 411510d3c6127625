"""A job's commit log, its meaning, and the base of a restore."""
