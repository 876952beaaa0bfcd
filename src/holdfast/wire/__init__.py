"""Where objects of all layers are built and joined; every other layer is given what it needs."""
