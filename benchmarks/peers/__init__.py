"""Other brokers, started for a benchmark and ended with it."""
