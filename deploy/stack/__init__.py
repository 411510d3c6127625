"""The local stack: real services on 127.0.0.1, started by scripts.

They are a database, an object store, Spark and Kafka.
"""
