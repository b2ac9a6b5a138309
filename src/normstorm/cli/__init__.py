"""The command `normstorm`: parse, call, print."""
