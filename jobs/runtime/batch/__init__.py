"""One micro-batch, in the driver: from the records that Spark hands over to all that its commit names.

The batch loop (`keyscale.jobs.runtime.driver.batch_loop`) plans each batch in the log, runs it with this room, and
commits it.
"""
