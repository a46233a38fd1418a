"""The places where workers run: a package for each executor."""
