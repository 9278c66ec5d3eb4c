"""The device's own commands of ``quorate``, one file each. They need nothing beyond a bare install."""
