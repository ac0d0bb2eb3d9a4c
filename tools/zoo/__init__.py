"""Making the built-in models: data, training, evaluation, cards and packaging. Not shipped with repflow."""
