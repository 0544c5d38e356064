"""The global model: its files, the updates it is made of, and how good it is."""
