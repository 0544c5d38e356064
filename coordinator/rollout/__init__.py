"""Upgrades of a whole fleet: a signed bundle of wheels, canaries first, then waves; docs/how-to/update.md."""
