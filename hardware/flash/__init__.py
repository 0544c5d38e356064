"""Cards and phones that become devices by themselves: images edited as files, without root and without mounting."""
