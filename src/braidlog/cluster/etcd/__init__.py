"""Cluster metadata log in etcd, which determines the order of entries."""
