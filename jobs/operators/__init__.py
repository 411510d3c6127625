"""Operators: their declared logic, and the running operators of subtasks."""
