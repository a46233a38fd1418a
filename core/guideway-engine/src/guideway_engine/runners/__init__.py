"""The runners of models on workers: a package for each runner."""
