"""mlog's adapter: handlers and error codes."""
