"""Flower apps on Quorate: the device that runs a ClientApp, and what both sides need to read an app and its records.

Importing this package needs no flwr.
"""
