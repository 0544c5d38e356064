"""The commands of a coordinator, and the views that they print."""
