"""Sinks: the contract, and files, PostgreSQL, Kafka and users' functions."""
