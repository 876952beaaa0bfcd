"""The dashboard in a browser: files that are served as they are, and three small questions."""
