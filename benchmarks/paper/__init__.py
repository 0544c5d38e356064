"""The paper's experiments on the devices' runtime, one entry per table or figure."""
