"""Identities, enrolment, and the signatures on artifacts, tasks, updates and wheels."""
