"""What all writers of a client share: bundles, runs on their way, LACs, one timer."""
