"""`python -m normstorm` is the command `normstorm`."""

from .cli.process import process

process()
