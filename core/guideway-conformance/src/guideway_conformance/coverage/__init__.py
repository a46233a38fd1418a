"""How many schemas of a corpus strategies serve, and how well: ``guideway coverage``."""
