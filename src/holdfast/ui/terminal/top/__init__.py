"""``holdfast top``: the joined view in a terminal."""
