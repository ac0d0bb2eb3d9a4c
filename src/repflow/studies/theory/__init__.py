"""Theory: closed forms beside simulations and beside the weights of real models."""
