"""The coordinator: picks cohorts, checks and averages updates over MQTT, and records every round."""
