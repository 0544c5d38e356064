"""The commands of a device, and what every command of sparsyedge shares: parser, table of subcommands, log lines."""
