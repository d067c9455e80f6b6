"""What a node says to the other nodes of its cluster."""
