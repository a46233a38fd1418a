"""Work in threads, with deadlines, quarantine, shared results and the time that it takes."""
