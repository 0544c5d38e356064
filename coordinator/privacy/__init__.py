"""Sums of which nobody sees a part: what the coordinator collects, asks for and takes off the sum."""
