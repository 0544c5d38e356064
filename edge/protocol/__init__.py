"""What coordinator and devices say to each other, and the connection that carries it."""
