"""The supervisor of `penstock run`: starts the processes, keeps them up, and says how they are."""
