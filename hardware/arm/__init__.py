"""64-bit ARM without a board: the device's wheel, cross-compiled, and a Debian tree to run it in under emulation."""
