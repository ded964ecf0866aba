"""The command line: one module per command, thin over `penstock.Pipeline`."""
