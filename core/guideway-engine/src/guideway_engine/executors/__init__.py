"""Where workers run: a package for each executor."""
