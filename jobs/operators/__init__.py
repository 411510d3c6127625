"""Operators: their logic, as declared, and the running operators that subtasks start from it."""
