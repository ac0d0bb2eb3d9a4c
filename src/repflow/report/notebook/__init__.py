"""Results in a notebook: figures and small tables."""
