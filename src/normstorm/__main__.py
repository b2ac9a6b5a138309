"""`python -m normstorm` is the command `normstorm`."""

from .cli.main import process

process()
