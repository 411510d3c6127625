"""The local stack: database, object store, Spark and Kafka as real processes on 127.0.0.1, started by scripts here."""
