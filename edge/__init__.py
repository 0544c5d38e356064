"""Code that runs on a device: agent, trainer, session, link, wire format, native op library. Never imports torch."""
