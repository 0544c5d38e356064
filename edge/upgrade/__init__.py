"""Upgrades over the air: what a device checks, fetches, installs beside itself, tries, and goes back from."""
