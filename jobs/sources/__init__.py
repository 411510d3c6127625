"""Sources in Python: the contract, reading through Spark, and Kafka."""
