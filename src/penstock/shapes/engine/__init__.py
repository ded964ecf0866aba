"""The way of a change to the shapes: the thread that changes them, and what it knows of each."""
