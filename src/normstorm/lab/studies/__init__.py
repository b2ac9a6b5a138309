"""Coverage of the bounds, and rates."""
