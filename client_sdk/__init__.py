"""What a device runs, and the words both sides speak."""
