"""The version of guideway, its engine and its conformance suite, which are released together."""

__version__ = "0.1.0.dev0"
