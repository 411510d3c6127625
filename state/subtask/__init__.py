"""A subtask's open state: the store that a task opens, its batches, and stores that stay open between batches."""
