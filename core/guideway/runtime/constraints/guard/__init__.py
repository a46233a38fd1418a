"""The admission guard: measures the possible cost of a constraint before any library parses it.

Native code may crash, hang or use up memory on a hostile constraint and take the whole process with it. So each
constraint is first measured in Python, without recursion, in time linear in its size. Strategies whose limits it
exceeds are not asked. The rules are in `guideway.api.limits`.
"""
