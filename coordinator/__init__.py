"""Rounds over MQTT: who takes part, what is accepted, how it is averaged, and where it is recorded."""
