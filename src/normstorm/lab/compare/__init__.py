"""Algorithms side by side at equal sample gradients."""
