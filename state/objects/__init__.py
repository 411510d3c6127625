"""Object stores: the home of all durable data, with a conditional create."""
