"""Architecture: grids of language models trained on a text, with perplexity, leaks, eigenvalues and norms of each."""
