"""The device's commands, and the parts that every command shares: parser, table of subcommands, log lines."""
