"""`sparsyedge demo`: a broker, a coordinator and device processes on this machine."""
