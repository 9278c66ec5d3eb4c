"""A Flower run in the fault explorer: a scripted ServerApp and its devices, without flwr."""
