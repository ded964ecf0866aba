"""Rows and changes as the JSON that clients read, written by compiled code."""
