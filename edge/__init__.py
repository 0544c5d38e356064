"""What runs on a device: agent, trainer, runtime session, link, wire format, native op library. Never imports torch."""
