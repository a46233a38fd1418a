"""Scheduling: which sequences run, which tokens each step computes for them, and which cache cells hold them."""
