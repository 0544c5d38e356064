"""The step of a network that our own layout understands, from image to loss: the fastest path, for ResNets."""
