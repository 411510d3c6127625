"""The events of jobs, and the streams that report changes."""
