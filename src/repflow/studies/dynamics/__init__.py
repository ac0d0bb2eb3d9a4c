"""Token dynamics of paper 3: simulated, and beside real layers."""
