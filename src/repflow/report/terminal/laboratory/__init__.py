"""What the terminal shows of grids of trained models: a module per laboratory, and the tables that they share."""
