"""How fast an engine is here: `precast bench`."""
