"""What people look at more closely: a round's lanes, the fleet, a plan's cost. Reads only."""
