"""Records for people: tail a topic, filter, decode values by their schemas."""
