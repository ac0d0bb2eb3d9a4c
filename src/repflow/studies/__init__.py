"""Studies: one file per question, each a Config and a run(config) that gives a Result."""
