"""Tables and screens for the terminal. Piped, everything is plain text."""
