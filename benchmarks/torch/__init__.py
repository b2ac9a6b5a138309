"""The optimizer for PyTorch; a script here imports no JAX."""
