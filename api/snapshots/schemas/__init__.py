"""The requests and answers about checkpoints and savepoints."""
