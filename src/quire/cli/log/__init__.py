"""`quire log`: commands about logs."""
