"""etcd as the node reaches it: a client of its HTTP gateway."""
