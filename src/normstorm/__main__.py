"""`python -m normstorm` is the command `normstorm`."""

from normstorm.cli import process

process()
