"""The suite is judged: correct plugins in realistic variety, and the same with one subtle mistake each.

Both were written from docs/contracts and docs/writing alone, without a look at the checks, and the mistakes were tried
before any check was changed for them. What came of it is told with each.
"""
