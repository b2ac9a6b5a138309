"""The engine beside other loops."""
