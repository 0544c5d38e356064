"""What a browser or Prometheus sees of a run: it reads the run's files, in a process of its own."""
