"""Studies of parts, of simulated machines, and of other engines; in a checkout only."""
