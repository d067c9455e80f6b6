"""Open a partition after a crash: truncate an incomplete tail, report damage, rebuild state, reset a log."""
