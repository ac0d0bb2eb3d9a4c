"""What the report is made of, as plain data: stored runs with their labels, and the parts of a page."""
