"""Communication with the other nodes of the cluster."""
