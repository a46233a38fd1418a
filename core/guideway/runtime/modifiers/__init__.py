"""Modifiers of a request: their states, answers and payloads, and the sampling parameters of rows."""
