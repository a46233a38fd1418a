"""A conformance report for people and for other programs."""
