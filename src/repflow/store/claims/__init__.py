"""Claims: who works on which cell of a study, on one machine or on many, without locks and without common clocks."""
