"""Long searches for faults, which are run by hand; a short one of each is a test."""
