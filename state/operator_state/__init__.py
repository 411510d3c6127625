"""Operator state: state of a subtask, not of a key."""
