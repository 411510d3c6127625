"""The autoscaler: facts, a model of batches, decisions, and moves."""
