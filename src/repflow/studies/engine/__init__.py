"""Engine: what every study shares."""
