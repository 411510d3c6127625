"""One batch, in the driver: from Spark's records to the commit's content.

The batch loop (`keyscale.jobs.runtime.driver.batch_loop`) plans each batch in the log, runs it with this room, and
commits it.
"""
