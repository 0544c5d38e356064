"""The messages between coordinator and devices, and the connection that carries them."""
