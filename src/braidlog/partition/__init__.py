"""A partition as this node hosts it: append, fetch, read, trim. In the server this folder alone touches a `PartitionLog`."""
