"""What every room may use: checks, files, hashes, JSON, pytrees, versions, and JAX's internals in one place."""
