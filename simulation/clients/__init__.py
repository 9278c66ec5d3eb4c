"""Who holds which data in a simulation."""
