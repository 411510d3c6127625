"""Runs a recorded batch again in one process, without effects."""
