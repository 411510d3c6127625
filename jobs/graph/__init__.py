"""A job's graph: nodes, schemas, and the topology that runs."""
