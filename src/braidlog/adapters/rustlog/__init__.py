"""RustLog meets the services."""
