"""Recall: stacks trained on multi-query associative recall, and what became of them."""
