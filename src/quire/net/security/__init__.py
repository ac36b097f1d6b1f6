"""TLS, certificates and passwords of a connection, at both ends."""
