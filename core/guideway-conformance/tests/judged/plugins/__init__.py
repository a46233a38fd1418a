"""Correct plugins, as strangers write them."""
