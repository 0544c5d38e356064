"""What runs on a device: agent, trainer, runtime session, link, wire format and the native op library. Never imports torch."""
