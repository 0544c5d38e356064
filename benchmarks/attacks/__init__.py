"""What hostile members of a fleet cost in accuracy, by the rule that combines updates."""
