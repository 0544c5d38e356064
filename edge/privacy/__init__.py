"""Sums of which nobody sees a part: what a device masks, whom it gives shares to, and what it opens."""
