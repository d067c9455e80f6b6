"""mlog meets the services."""
