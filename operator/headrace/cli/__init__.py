"""The `headrace` command line: one module per subcommand."""
