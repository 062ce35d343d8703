"""One object for whoever analyses: models loaded once, all analyses as methods, one report of everything."""
