"""Every decoder of the installed transformers as a tiny random model, and what repflow makes of it. Not shipped."""
