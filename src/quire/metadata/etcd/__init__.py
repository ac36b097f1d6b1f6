"""The store in etcd."""
