# Cross compiling for 64-bit ARM Linux with Debian's g++-aarch64-linux-gnu. No -mcpu: every AArch64 has NEON, and code for
# one board's processor would not run on another's.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
