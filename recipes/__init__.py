"""How the weights that diffuspec ships were made; in a checkout only."""
