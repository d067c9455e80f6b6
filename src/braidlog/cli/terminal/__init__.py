"""Connections, output, times and interrupts that all commands share."""
