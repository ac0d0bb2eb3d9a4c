"""Study of the token laboratory: signs of eigenvalues and orders of tokens, in parts that can be carried."""
