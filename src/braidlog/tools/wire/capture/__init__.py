"""Record conversations, read captures back, decode and print messages."""
