"""A model or an update as bytes: envelope, tensors, native codec, and the error that a lossy codec feeds back."""
