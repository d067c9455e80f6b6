"""RustLog's adapter: handlers and error codes."""
