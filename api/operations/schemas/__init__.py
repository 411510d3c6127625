"""The requests of operations of each kind, and their answers."""
