"""Words that every layer shares: names, records, errors, limits, the clock. May import codec."""
