"""Command line: parses, calls a study, then the report; says where it wrote."""
