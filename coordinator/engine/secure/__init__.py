"""The phases of secure rounds. They only decide; ``coordinator.secure`` performs the actions."""
