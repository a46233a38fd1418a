"""What runs a model on a worker: a package for each runner."""
