"""XLA and TPU through jax as a device and a model runner for guideway."""
