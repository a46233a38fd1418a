import os

if "GWT_MARKER" in os.environ:
    with open(os.environ["GWT_MARKER"], "a") as marker:
        marker.write("gwt_broken_import\n")
raise ImportError("libfoo.so.3: cannot open shared object file\nsecond line")
