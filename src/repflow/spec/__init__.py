"""The small languages of requests: init schemes, ablations, lengths, options, names of built-in models. No torch."""
