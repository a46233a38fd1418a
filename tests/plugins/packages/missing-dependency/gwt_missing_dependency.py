raise AssertionError("must not be imported: a requirement is missing")
