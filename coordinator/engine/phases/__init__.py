"""What may happen in each phase of a round, a file for each phase, and what the phases share."""
