"""The version of guideway, of its engine and of its suite: the three are released together."""

__version__ = "0.1.0.dev0"
