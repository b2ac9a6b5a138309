"""Plans, evidence, comparisons and claims."""
