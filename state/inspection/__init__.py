"""Reading checkpoints and savepoints without the job that took them, and writing migrated ones."""
