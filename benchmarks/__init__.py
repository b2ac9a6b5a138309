"""Studies that measure; each is run as a module from the root of the repository."""
