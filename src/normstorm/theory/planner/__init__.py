"""From constants to parameters with a proven bound."""
