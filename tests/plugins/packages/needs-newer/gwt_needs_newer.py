raise AssertionError("must not be imported: it requires another guideway")
