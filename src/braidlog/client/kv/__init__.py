"""The client of the key-value store: asyncio and blocking."""
