"""A subtask's open state: the store, its batches, and idle stores."""
