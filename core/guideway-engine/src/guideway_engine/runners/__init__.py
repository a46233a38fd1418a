"""Runners, which run models on workers: a package for each runner."""
