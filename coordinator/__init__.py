"""Keeps the global model, selects devices, counts reports and commits rounds."""
