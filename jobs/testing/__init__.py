"""The test harness for users' functions; it needs neither Spark nor a store. Users import `keyscale.testing`."""
