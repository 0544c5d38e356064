"""How updates become the next model: weights, bounds, robust rules, server optimizers."""
