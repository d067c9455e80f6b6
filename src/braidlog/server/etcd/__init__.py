"""The node's access to etcd: a client of its HTTP gateway."""
