"""The life of a driver: from its assignment over batches and checkpoints to its last report."""
