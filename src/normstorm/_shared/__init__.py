"""What every room may use: checks, files, pytrees, versions, and JAX's internals in one place."""
