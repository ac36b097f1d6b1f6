"""The store in ZooKeeper, in BookKeeper's own layout."""
