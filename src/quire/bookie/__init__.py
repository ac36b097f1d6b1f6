"""The storage server: stores entries and serves reads, fences and inquiries. It imports no client."""
