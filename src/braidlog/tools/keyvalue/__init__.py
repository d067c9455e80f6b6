"""Offline work on a key-value store: what is damaged in it, what can still be read, how it is made whole."""
