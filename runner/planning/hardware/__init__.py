"""The memory and cores there are: this machine's, or a declared one's."""
