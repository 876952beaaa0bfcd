"""The dashboard in a browser: static files, sessions, and what-if simulations."""
