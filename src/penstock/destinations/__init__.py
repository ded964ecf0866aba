"""Where tables live. A destination commits data files together with the proof of what they hold."""
