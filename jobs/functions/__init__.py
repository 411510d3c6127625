"""The functions that users write, and what the runtime gives them: rows, contexts, timers, windows."""
