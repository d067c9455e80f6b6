"""Other people's brokers, started and stopped beside ours."""
