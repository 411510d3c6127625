"""Object stores: everything durable is in one, behind one protocol with a conditional create."""
