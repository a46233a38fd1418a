"""The program ``guideway``, and the commands of the library itself."""
