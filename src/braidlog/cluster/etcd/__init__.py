"""The metadata log of a cluster: entries in etcd, which decides their order."""
