"""The program ``guideway`` and the library's own commands."""
