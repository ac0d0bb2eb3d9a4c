"""Options of a request that takes a fraction of a second."""

SMALL = ("--length", "24", "--samples", "3")
