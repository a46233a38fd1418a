"""The decisions which sequences run, what each step computes for them, and where their tokens live."""
