"""Inspection of a constraint and a text: the chosen strategy, the allowed tokens at each step, and where and why the
text is refused."""
