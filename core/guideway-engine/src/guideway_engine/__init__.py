"""guideway's own engine: a host that runs `transformers` models with guideway's plugins.

Import its public names from `guideway`: ``from guideway import Engine``.
"""
