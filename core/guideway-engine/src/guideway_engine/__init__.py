"""guideway's own engine: a host that runs `transformers` models with the plugins of guideway.

Its public names are those of `guideway`: ``from guideway import Engine``.
"""
