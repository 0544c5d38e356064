"""The round state machine and the rules it follows. Pure: no I/O, no clock."""
