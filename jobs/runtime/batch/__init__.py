"""One micro-batch: from the records that Spark hands over to all that its commit names. Runs in the driver."""
